//! Any packet of a connected client, read in both versions, and written again.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = muster_broker::fuzzing::packet(data);
});
