//! Compiles `guard/v1/*.proto` without a system `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["guard/v1/guard.proto", "guard/v1/link.proto"];
    let descriptors = protox::compile(files, ["."])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    for file in files {
        println!("cargo::rerun-if-changed={file}");
    }
    Ok(())
}
