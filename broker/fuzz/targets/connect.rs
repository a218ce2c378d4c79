//! What follows the fixed header of a CONNECT of either version.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = muster_broker::fuzzing::connect(data);
});
