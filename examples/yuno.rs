//! A yuno that plays, takes a command, and tells numbers about itself. Built by `cargo build -p muster-yuno --examples`; given to a
//! host with
//!
//! ```console
//! $ muster artifact create target/debug/examples/yuno --role metronome --version 1 $ muster unit create yuno
//! default/metronome --artifact metronome --lines --run
//! $ muster yuno play default/metronome
//! $ muster yuno command default/metronome tempo bpm=90
//! $ muster yuno stats default/metronome
//! ```

use std::time::Duration;

use muster_yuno::{ChannelError, Yuno, YunoQuestion};
use serde_json::{Map, Value, json};

fn main() -> Result<(), ChannelError> {
    let mut yuno = Yuno::connect_from_env(&["play", "command", "stats"])?;
    let (mut bpm, mut beats, mut playing) = (120_u64, 0_u64, yuno.welcome().playing);
    yuno.status("wound up")?;
    yuno.ready()?;
    let mut connections = yuno.connections();
    loop {
        // A beat, or a while in which a watchdog hears that all is well.
        let request = yuno.next_within(Duration::from_millis(60_000 / bpm))?;
        if connections != yuno.connections() {
            // The agent, or what stands between, was away; what it wants now counts.
            (connections, playing) = (yuno.connections(), yuno.welcome().playing);
        }
        let Some(request) = request else {
            beats += u64::from(playing);
            yuno.alive()?;
            continue;
        };
        match request.ask() {
            ask @ (YunoQuestion::Play | YunoQuestion::Pause) => {
                playing = *ask == YunoQuestion::Play;
                // Of its own accord, for whoever looks at it.
                yuno.stats(&Map::from_iter([("beats".to_owned(), beats.into())]))?;
                yuno.ok(&request, Value::Null)?;
            }
            YunoQuestion::Stats => yuno.ok(&request, json!({ "bpm": bpm, "beats": beats, "playing": playing }))?,
            YunoQuestion::Command(name, args) if name == "tempo" => {
                let wanted = args.get("bpm").and_then(|bpm| bpm.as_u64().or_else(|| bpm.as_str()?.parse().ok()));
                match wanted.filter(|bpm| (1..=1_000).contains(bpm)) {
                    Some(wanted) => {
                        bpm = wanted;
                        yuno.ok(&request, json!({ "bpm": bpm }))?;
                    }
                    None => yuno.error(&request, "bad_bpm", "bpm must be a number from 1 to 1000")?,
                }
            }
            _ => yuno.error(&request, "unknown", "this is unknown")?,
        }
    }
}
