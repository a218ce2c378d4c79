//! Tests of `play` and `pause`.

use muster_topics::{channel::Ability, unit::Channel};

use super::*;

#[test]
fn play_is_refused_without_capability() {
    let play = |run| Verb::UnitPlay { unit: unit(), run };
    let pause = || Verb::UnitPause { unit: unit() };
    let check = |now: (Run, Phase), seen: fn(&mut Observed), verb: &Verb, outcome: &str| {
        let desired = desired(now.0, |spec| spec.channel = Channel::Lines);
        let mut observed = Observed { state: now.1.into(), ..Observed::absent(0) };
        seen(&mut observed);
        let result = edit(&unit(), Some(CurrentUnit { desired: &desired, hold: None, observed: &observed }), verb);
        assert_eq!(word(&result), outcome, "{verb:?} when {now:?}");
    };
    let running = (Run::Running, Phase::Running);
    fn can(seen: &mut Observed, ability: Ability) {
        seen.state.instance_mut().unwrap().can = vec![ability];
    }
    let playing = (Run::Playing, Phase::Playing);
    let stopped = (Run::Stopped, Phase::Stopped);
    check(running, |_| (), &play(false), "playing 0");
    check(running, |seen| can(seen, Ability::Play), &play(false), "playing 0");
    check(running, |seen| can(seen, Ability::Stats), &play(false), "Unsupported");
    check(playing, |_| (), &play(false), "keep");
    check((Run::Playing, Phase::Starting), |_| (), &play(false), "keep");
    check((Run::Playing, Phase::Running), |seen| seen.error = Some("no".into()), &play(false), "playing 0");
    check((Run::Playing, Phase::Backoff), |_| (), &play(false), "playing 0");
    check(stopped, |_| (), &play(false), "Conflict");
    check(stopped, |_| (), &play(true), "playing 0");
    check(playing, |_| (), &pause(), "running 0");
    check(running, |_| (), &pause(), "keep");
    check(stopped, |_| (), &pause(), "keep");
    // What plays goes on to play.
    check(playing, |_| (), &run(), "keep");
    check((Run::Playing, Phase::Failed), |_| (), &run(), "playing 0");
    check(playing, |_| (), &restarted(), "playing 1");
    check(playing, |_| (), &stop(), "stopped 0");
    check(playing, |_| (), &rm(), "Conflict");
    let same = || yuno(|spec| spec.channel = Channel::Lines);
    check(playing, |_| (), &applied(same(), Some(Run::Running)), "keep");
    check(playing, |_| (), &applied(same(), None), "keep");
    check(running, |_| (), &applied(same(), Some(Run::Playing)), "playing 0");
    // Without a channel there is nobody to ask.
    self::check((Run::Running, Phase::Running, false), &play(false), "Unsupported");
}
