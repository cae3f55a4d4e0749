//! The gRPC interface `guard.v1`, generated from `proto/guard/v1`.
//!
//! `guard.proto` is what people, harnesses and agents call over `guard.sock` and `agent.sock`;
//! `link.proto` is the private line between `guardd` and `guard-core`.

/// Messages, clients and servers of the package `guard.v1`.
#[expect(clippy::all, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("guard.v1");
}
