//! Tests of output.

use std::fs;

use muster_shim::{CaptureResult, Launch, OutputMode, ProcessExit, ShimEvent, files, process_identity};

use crate::rig::{Rig, TERM, argv, command, eventually, is_alive, pids_in, service, with_folder};

#[test]
fn both_streams_are_kept_apart_and_told() {
    let mut rig = Rig::new();
    rig.launch(&command("echo out; echo err >&2; echo more"));
    let mut lens = [0, 0];
    let over = loop {
        match rig.event().unwrap() {
            ShimEvent::Output { stderr, len_bytes } => lens[usize::from(stderr)] = len_bytes,
            ShimEvent::State(state) if state.over => break state,
            _ => {}
        }
    };
    assert_eq!((rig.text("stdout").as_str(), rig.text("stderr").as_str()), ("out\nmore\n", "err\n"));
    assert_eq!(over.dropped_bytes, (0, 0));
    assert!(lens[0] <= 9 && lens[1] <= 4);
}

#[test]
fn output_over_limit_is_dropped_and_counted() {
    let mut rig = Rig::new();
    let output = OutputMode::Capture(CaptureResult::of(1_000));
    rig.launch(&Launch { output, ..command("head -c 300000 /dev/zero; head -c 1001 /dev/zero >&2; echo end >&2") });
    let over = rig.over();
    assert_eq!(over.last.unwrap().exit, ProcessExit::Code(0));
    assert_eq!(over.dropped_bytes, (299_000, 5));
    assert_eq!((rig.text("stdout").len(), rig.text("stderr").len()), (1_000, 1_000));
}

#[test]
fn each_stream_has_its_own_limit_and_may_go_nowhere() {
    let mut rig = Rig::new();
    let script = "echo 1234567890; echo 1234567890 >&2; at=$(readlink /proc/$$/fd/1); echo $at >&2";
    let output =
        OutputMode::Capture(CaptureResult { max_bytes: 5, stderr_max_bytes: Some(8), ..CaptureResult::default() });
    rig.launch(&Launch { output, ..command(script) });
    let over = rig.over();
    assert_eq!((rig.text("stdout").as_str(), rig.text("stderr").as_str()), ("12345", "12345678"));
    assert!(over.dropped_bytes.0 == 6 && over.dropped_bytes.1 > 3, "{over:?}");

    let mut rig = Rig::new();
    let output = OutputMode::Capture(CaptureResult { drop_stdout: true, ..CaptureResult::of(1_000) });
    rig.launch(&Launch { output, ..command(script) });
    let over = rig.over();
    assert_eq!(over.last.unwrap().exit, ProcessExit::Code(0));
    assert_eq!(rig.text("stderr"), "1234567890\n/dev/null\n");
    assert!(!rig.folder.path().join("stdout").exists() && over.dropped_bytes == (0, 0));
}

#[test]
fn a_command_reads_what_it_was_given_and_otherwise_nothing() {
    let mut rig = Rig::new();
    fs::write(rig.folder.path().join(files::STDIN), "from the file").unwrap();
    let output = OutputMode::Capture(CaptureResult { stdin: true, ..CaptureResult::of(1_000) });
    rig.launch(&Launch { output, ..command("cat; cat < /dev/stdin") });
    rig.over();
    assert_eq!(rig.text("stdout"), "from the filefrom the file");

    let mut rig = Rig::new();
    rig.launch(&command("cat; echo end"));
    rig.over();
    assert_eq!(rig.text("stdout"), "end\n");
}

#[test]
fn endless_output_ends_at_time_limit() {
    let mut rig = Rig::new();
    rig.launch(&Launch {
        timeout_ms: Some(300),
        output: OutputMode::Capture(CaptureResult::of(100)),
        ..command("exec yes")
    });
    let over = rig.over();
    let last = over.last.clone().unwrap();
    assert!(last.timed_out);
    assert_eq!(last.exit, ProcessExit::Signal(TERM));
    assert!(over.dropped_bytes.0 > 100_000, "{over:?}");
    assert_eq!(rig.text("stdout").len(), 100);
}

#[test]
fn what_a_command_starts_in_the_background_stays_and_is_drained() {
    let mut rig = Rig::new();
    // More than a pipe holds: it can only get to its end if somebody reads.
    let script = "(while ! [ -e $FOLDER/go ]; do sleep 0.02; done
                   head -c 300000 /dev/zero; echo done > $FOLDER/done) & echo $! > $FOLDER/pids; echo hello";
    let launch = with_folder(&rig, command(script));
    rig.launch(&launch);
    assert_eq!(rig.exit(), ProcessExit::Code(0));
    assert_eq!(rig.text("stdout"), "hello\n");
    let daemon = pids_in(&rig, "pids", 1)[0];
    assert!(is_alive(daemon));
    let shim = process_identity::stat(daemon).unwrap().ppid;
    fs::write(rig.path("go"), "").unwrap();
    eventually("its end", || rig.text("done") == "done\n");
    assert_eq!(rig.text("stdout"), "hello\n", "what comes after the end belongs to nobody");
    eventually("the shim's end", || !is_alive(shim));
}

#[test]
fn a_log_is_rotated_and_goes_on_after_a_relaunch() {
    let mut rig = Rig::new();
    let output = OutputMode::Log { max_bytes: 100, keep: 2, max_age_ms: None };
    let launch =
        Launch { output, ..service("i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); done; echo e >&2", 0) };
    rig.launch(&launch);
    rig.over();
    let files = || [rig.text("log.2"), rig.text("log.1"), rig.text("log")];
    assert!(files().iter().all(|file| file.len() <= 100 && file.ends_with('\n')), "{:?}", files());
    assert!(files().concat().ends_with("line 38\nline 39\ne\n"));
    assert!(!rig.path("log.3").exists());
    let before = rig.text("log");
    rig.launch(&Launch { argv: argv(&["/bin/echo", "again"]), ..launch });
    rig.over();
    assert_eq!(rig.text("log"), format!("{before}again\n"));
}
