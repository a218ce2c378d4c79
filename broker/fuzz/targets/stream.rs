//! Bytes as they come from the network: frames, and what is in them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = muster_broker::fuzzing::stream(data);
});
