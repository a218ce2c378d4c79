//! Elements that all pages share: ages, states, sizes, empty states.
//!
//! A state is a word with a colour, never a colour alone; a value has its age beside it.

use maud::{Markup, html};
use muster_api::{CommandHost, CommandState, Cordon, CordonInfo, HostConnection, HostPresence, Unit};
use muster_topics::count::counted;
use muster_topics::{
    Millis,
    diagnostic::Diagnostic,
    name::HostId,
    outcome::{RefusalCode, Status, StepOutcome},
    unit::{Hold, HoldReason, Phase, Run},
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

pub(in crate::web) use muster_topics::size::print as bytes;

/// The colour of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::web) enum Tone {
    /// It needs attention.
    Bad,
    /// It may need attention, or is in progress.
    Busy,
    /// Neutral.
    Idle,
    /// As it should be.
    Good,
}

impl Tone {
    fn class(self) -> &'static str {
        match self {
            Self::Bad => "state bad",
            Self::Busy => "state busy",
            Self::Idle => "state idle",
            Self::Good => "state good",
        }
    }
}

/// Renders a state.
pub(in crate::web) fn state(tone: Tone, word: &str) -> Markup {
    html! { span class=(tone.class()) { (word) } }
}

/// Formats the distance of a time from now.
pub(in crate::web) fn age(at_ms: Millis, now_ms: Millis) -> String {
    let difference_ms = now_ms.saturating_sub(at_ms);
    let span = span(difference_ms.unsigned_abs());
    if difference_ms < 0 { format!("in {span}") } else { format!("{span} ago") }
}

/// Formats a duration with one unit.
pub(in crate::web) fn span(ms: u64) -> String {
    match ms / 1000 {
        s @ 0..60 => format!("{s} s"),
        s @ 60..3_600 => format!("{} min", s / 60),
        s @ 3_600..172_800 => format!("{} h", s / 3_600),
        s => format!("{} days", s / 86_400),
    }
}

/// Formats how long something took.
pub(in crate::web) fn took(ms: Millis) -> String {
    match u64::try_from(ms).unwrap_or(0) {
        ms @ 0..1_000 => format!("{ms} ms"),
        ms @ 1_000..60_000 => format!("{:.1} s", ms as f64 / 1000.0),
        ms => format!("{} min {} s", ms / 60_000, ms % 60_000 / 1000),
    }
}

/// Formats a time.
pub(in crate::web) fn written(at_ms: Millis) -> String {
    let nanos = i128::from(at_ms) * 1_000_000;
    let time = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok().and_then(|time| time.format(&Rfc3339).ok());
    time.unwrap_or_else(|| format!("{at_ms} ms"))
}

/// Renders a past time as its age, which a script keeps current. By its host's clock it may be later than now, and
/// still be past.
pub(in crate::web) fn ago(at_ms: Millis, now_ms: Millis) -> Markup {
    let written = written(at_ms);
    html! { time.age datetime=(written) title=(written) data-ms=(at_ms) { (age(at_ms.min(now_ms), now_ms)) } }
}

/// Renders the time of something that will happen, or has happened meanwhile.
pub(in crate::web) fn due(at_ms: Millis, now_ms: Millis) -> Markup {
    let written = written(at_ms);
    html! { time.age datetime=(written) title=(written) data-ms=(at_ms) data-due="" { (age(at_ms, now_ms)) } }
}

/// Formats a ratio.
pub(in crate::web) fn percent(ratio: f64) -> String {
    let percent = ratio * 100.0;
    if percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// Formats a number with separators, and its noun.
pub(in crate::web) fn count(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

/// Formats as `12,345`.
pub(in crate::web) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Renders a host's presence.
pub(in crate::web) fn presence(presence: Option<&HostPresence>) -> Markup {
    match presence.map(|presence| presence.state) {
        Some(HostConnection::Online) => state(Tone::Good, "online"),
        Some(HostConnection::Offline) => state(Tone::Bad, "offline"),
        Some(HostConnection::Stopped) => state(Tone::Idle, "stopped"),
        Some(HostConnection::Unknown) => state(Tone::Busy, "unknown since"),
        None => state(Tone::Busy, "never connected"),
    }
}

/// Renders a host's presence, and since when.
pub(in crate::web) fn presence_since(found: Option<&HostPresence>, now_ms: Millis) -> Markup {
    html! {
        (presence(found))
        @if let Some(found) = found { " " (ago(found.since_ms, now_ms)) }
    }
}

/// Renders that a host gets no new deployments, or none.
pub(in crate::web) fn cordon(cordon: &CordonInfo) -> Markup {
    state(if cordon.cordon == Cordon::Open { Tone::Good } else { Tone::Busy }, &cordon.words())
}

/// Renders a unit's phase.
pub(in crate::web) fn phase(phase: Phase) -> Markup {
    match phase {
        Phase::Absent => state(Tone::Idle, "absent"),
        Phase::Installing => state(Tone::Busy, "installing"),
        Phase::Stopped => state(Tone::Idle, "stopped"),
        Phase::Starting => state(Tone::Busy, "starting"),
        Phase::Running => state(Tone::Good, "running"),
        Phase::Playing => state(Tone::Good, "playing"),
        Phase::Stopping => state(Tone::Busy, "stopping"),
        Phase::Backoff => state(Tone::Bad, "waiting to restart"),
        Phase::Failed => state(Tone::Bad, "failed"),
    }
}

/// Renders a unit's phase; a retired unit is neutral, however it ended.
pub(in crate::web) fn unit_phase(unit: &Unit) -> Markup {
    if unit.retired().is_some() { state(Tone::Idle, "retired") } else { phase(unit.observed.phase()) }
}

/// Returns whether a unit should run, as a word.
pub(in crate::web) fn wanted(run: Run) -> &'static str {
    match run {
        Run::Stopped => "stopped",
        Run::Running => "running",
        Run::Playing => "playing",
    }
}

/// Renders why a unit is held.
pub(in crate::web) fn unit_held(unit: &Unit, now_ms: Millis) -> Markup {
    let retired = unit.retired().map(|hold| held(hold, (Tone::Idle, "held"), now_ms));
    let Some(hold) = &unit.hold else { return html! {} };
    let (tone, why) = match hold.reason {
        HoldReason::Operator => (Tone::Busy, "held: operator"),
        HoldReason::Dependency => (Tone::Busy, "held: dependency"),
        HoldReason::Conflict => (Tone::Bad, "held: conflict"),
        HoldReason::Broken => (Tone::Bad, "held: broken"),
    };
    retired.unwrap_or_else(|| held(hold, (tone, why), now_ms))
}

fn held(hold: &Hold, (tone, why): (Tone, &str), now_ms: Millis) -> Markup {
    html! {
        (state(tone, why))
        @if let Some(by) = &hold.by { " " (by) }
        " " (ago(hold.since_ms, now_ms))
        @if let Some(note) = &hold.note { ": " (note) }
    }
}

/// Returns the progress of a command on a host, or how it ended.
pub(in crate::web) fn progress(line: &CommandHost) -> (Tone, String) {
    progress_of(line.state(), line.status())
}

/// The same, from the state and the status.
pub(in crate::web) fn progress_of(state: CommandState, status: Option<&Status>) -> (Tone, String) {
    match (state, status) {
        (CommandState::Done, Some(status)) => outcome_words(status),
        (CommandState::Done, None) => (Tone::Good, "done".to_owned()),
        (CommandState::Waiting, _) => (Tone::Busy, "waiting".to_owned()),
        (CommandState::Accepted, _) => (Tone::Busy, "queued".to_owned()),
        (CommandState::Running, _) => (Tone::Busy, "running".to_owned()),
        (CommandState::Missing, _) => (Tone::Bad, "no answer".to_owned()),
    }
}

pub(in crate::web) fn outcome_words(status: &Status) -> (Tone, String) {
    let tone = match status {
        status if status.is_success() => Tone::Good,
        // It was not selected, and did nothing, as it should.
        Status::Refused { code: RefusalCode::NotSelected, .. } => Tone::Idle,
        _ => Tone::Bad,
    };
    let words = match status {
        Status::Refused { code: RefusalCode::NotSelected, .. } => "no longer selected".to_owned(),
        Status::Exited(end) => end.to_string(),
        Status::TimedOut => "timed out".to_owned(),
        Status::Cancelled => "cancelled".to_owned(),
        Status::Batch { steps } => batch_words(steps),
        Status::Applied { generation, .. } => format!("applied (generation {generation})"),
        Status::AppliedSet { units } => format!("applied ({})", counted(units.len(), "unit")),
        Status::Completed => "done".to_owned(),
        Status::Refused { .. } => "refused".to_owned(),
        Status::Failed(_) => "failed".to_owned(),
        Status::Lost => "lost".to_owned(),
    };
    (tone, words)
}

/// Describes how far a batch came, or what stopped it.
fn batch_words(steps: &[StepOutcome]) -> String {
    match (1..).zip(steps).find(|(_, step)| !step.status.is_success()) {
        Some((number, step)) => format!("step {number}: {}", outcome_words(&step.status).1),
        None => format!("{} done", counted(steps.len(), "step")),
    }
}

/// Returns what an outcome says beyond its state.
pub(in crate::web) fn reason(line: &CommandHost) -> Option<Diagnostic> {
    match line.status()? {
        Status::Refused { diagnostic, .. } | Status::Failed(diagnostic) => Some(diagnostic.clone()),
        Status::Lost => Some("the agent started it, but its outcome is unknown; it is not run again".into()),
        _ => None,
    }
}

/// The width of a bar, in the units of its parts.
const BAR_WIDTH: u64 = 1_000;
/// The least width of a part that is not empty: one of ten thousand is seen, too.
const PART_WIDTH_MIN: u64 = 8;

/// Renders a bar of parts, each of a class and a number, of a total; what they leave of it stays empty. The numbers
/// stand beside it as words: the bar is never the only one to tell.
pub(in crate::web) fn bar(label: &str, total: u64, parts: &[(&str, u64)]) -> Markup {
    let mut x = 0;
    html! {
        svg.bar viewBox={ "0 0 " (BAR_WIDTH) " 10" } preserveAspectRatio="none" role="img" aria-label=(label) {
            @for (width, (class, _)) in bar_widths(total, parts).into_iter().zip(parts) {
                @if width > 0 {
                    rect class=(class) x=({ x += width; x - width }) y="0" width=(width) height="10" {}
                }
            }
        }
    }
}

/// Returns the widths of parts: in sum no more than the bar's.
fn bar_widths(total: u64, parts: &[(&str, u64)]) -> Vec<u64> {
    let sum = parts.iter().fold(0_u64, |sum, (_, number)| sum.saturating_add(*number));
    let total = total.max(sum).max(1);
    let width = |number: u64| match number {
        0 => 0,
        // Of numbers this large the product would be greater than fits.
        number => u64::try_from(u128::from(number) * u128::from(BAR_WIDTH) / u128::from(total))
            .unwrap_or(BAR_WIDTH)
            .max(PART_WIDTH_MIN),
    };
    let mut widths: Vec<u64> = parts.iter().map(|(_, number)| width(*number)).collect();
    let over = widths.iter().sum::<u64>().saturating_sub(BAR_WIDTH);
    if let Some(widest) = widths.iter_mut().max() {
        *widest = widest.saturating_sub(over);
    }
    widths
}

/// The URL of a host's page.
pub(in crate::web) fn host_url(host: HostId) -> String {
    format!("/host/{host}")
}

/// Renders a command line to copy.
pub(in crate::web) fn cli(line: &str) -> Markup {
    html! { pre.cli tabindex="0" { code { (line) } } }
}

/// Renders an empty list: what it would contain, and how to begin.
pub(in crate::web) fn empty(what: &str, next: &str, line: &str) -> Markup {
    html! {
        div.empty {
            p { strong { (what) } " " (next) }
            (cli(line))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_ages_are_never_negative() {
        let text = |markup: Markup| markup.into_string();
        assert!(text(ago(1_700, 1_000)).contains(">0 s ago<") && text(ago(61_000, 1_000)).contains(">0 s ago<"));
        assert!(text(due(61_000, 1_000)).contains(">in 1 min<") && text(due(1_000, 61_000)).contains(">1 min ago<"));
    }

    #[test]
    fn ages_are_formatted() {
        for (ms, wanted) in [
            (0, "0 s ago"),
            (3_900, "3 s ago"),
            (59_999, "59 s ago"),
            (60_000, "1 min ago"),
            (3_600_000, "1 h ago"),
            (47 * 3_600_000, "47 h ago"),
            (48 * 3_600_000, "2 days ago"),
            (-5_000, "in 5 s"),
        ] {
            assert_eq!(age(1_000_000_000_000 - ms, 1_000_000_000_000), wanted);
        }
        assert_eq!(age(i64::MIN, i64::MAX), format!("{} days ago", i64::MAX / 86_400_000));
    }

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 0.031, 0.0999, 1.0].map(percent), ["0.0 %", "3.1 %", "10 %", "100 %"]);
        assert_eq!([5, 1_250, 61_500].map(took), ["5 ms", "1.2 s", "1 min 1 s"]);
    }

    #[test]
    fn each_part_of_a_bar_is_seen_and_none_leaves_it() {
        let widths = |total, numbers: &[u64]| {
            let parts: Vec<(&str, u64)> = numbers.iter().map(|number| ("good", *number)).collect();
            bar_widths(total, &parts)
        };
        assert_eq!(widths(4, &[1, 0, 1]), [250, 0, 250]);
        assert_eq!(widths(10_000, &[9_999, 1]), [992, 8]);
        assert_eq!(widths(10_000, &[1, 1, 1]), [8, 8, 8]);
        assert!(widths(0, &[]).is_empty());
        assert_eq!(widths(0, &[0]), [0]);
        assert_eq!(widths(1, &[3, 1]), [750, 250], "more than there are");
        assert_eq!(widths(u64::MAX, &[u64::MAX / 2]), [499]);
    }

    #[test]
    fn times_are_written_out() {
        assert_eq!(written(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        assert_eq!(written(i64::MAX), format!("{} ms", i64::MAX));
    }
}
