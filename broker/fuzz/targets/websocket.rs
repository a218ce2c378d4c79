//! What a WebSocket client sends: a request, and frames; or frames alone, so that not every input has to be a request.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = muster_broker::fuzzing_websocket::stream(data);
    let _ = muster_broker::fuzzing_websocket::frames(data);
});
