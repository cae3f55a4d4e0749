//! One record of the kernel's ring.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = guard_daemon::enforce::record::decode(data);
});
