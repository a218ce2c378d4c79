//! Windows: when hosts may begin.
//!
//! `Mon-Fri 02:00-05:00 Europe/Berlin`: days, times, and the zone that they are of. Without days it is every day; a window
//! that ends before it begins goes on into the next day. The zone `host` is the host's own: the host asks only while it is
//! open, and the console takes a question of such a rollout for void after [`QUESTION_VALID_MS`].

use std::{fmt, str::FromStr};

use jiff::{
    Timestamp,
    civil::Date,
    tz::{TimeZone, TimeZoneDatabase},
};
use muster_topics::Millis;

use crate::unknown_keys;

/// How long a question counts, where windows are in the hosts' own zones. A host asks only while its window stays open for
/// this long, and asks again at least twice in that time.
pub const QUESTION_VALID_MS: Millis = 5 * 60_000;
/// The shortest window: a host asks once a minute at most, and has to be answered.
const LENGTH_MIN_MINUTES: u16 = 10;
/// How far ahead an opening is looked for: each window opens once a week.
const DAYS_AHEAD: u32 = 8;
const DAY_MINUTES: u16 = 24 * 60;
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// A time of some days of the week in which hosts may begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The days on which it opens, from Monday.
    days: [bool; 7],
    /// When it opens, in minutes of the day.
    from: u16,
    /// When it closes; of the next day, if that is not later.
    to: u16,
    /// Whose time that is.
    zone: WindowZone,
}

/// Whose time a window is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowZone {
    /// Each host's own.
    Host,
    /// That of a place, by its name in the IANA's database.
    Named(String),
}

/// Whether hosts may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowState {
    /// They may, until then; `None`: always.
    Open {
        /// Until when.
        until_ms: Option<Millis>,
    },
    /// They may not.
    Closed {
        /// When the next window opens.
        opens_ms: Option<Millis>,
    },
}

impl Window {
    /// Whose time it is in.
    #[must_use]
    pub fn zone(&self) -> &WindowZone {
        &self.zone
    }

    fn length(&self) -> u16 {
        if self.from < self.to { self.to - self.from } else { DAY_MINUTES - self.from + self.to }
    }

    /// When the window of a day opens and closes.
    fn of_day(&self, day: Date, zone: &TimeZone) -> Option<(Millis, Millis)> {
        let index = usize::try_from(day.weekday().to_monday_zero_offset()).ok()?;
        if !*self.days.get(index)? {
            return None;
        }
        let at = |day: Date, minutes: u16| {
            let (day, minutes) = match minutes {
                DAY_MINUTES => (day.tomorrow().ok()?, 0),
                _ => (day, minutes),
            };
            let time = day.at(i8::try_from(minutes / 60).ok()?, i8::try_from(minutes % 60).ok()?, 0, 0);
            Some(zone.to_ambiguous_timestamp(time).compatible().ok()?.as_millisecond())
        };
        let last_day = if self.from < self.to { day } else { day.tomorrow().ok()? };
        Some((at(day, self.from)?, at(last_day, self.to)?)).filter(|(from, to)| from < to)
    }

    /// Whether it is open, in this zone.
    #[must_use]
    pub fn state(&self, now_ms: Millis, zone: &TimeZone) -> WindowState {
        let closed = WindowState::Closed { opens_ms: None };
        let Ok(now) = Timestamp::from_millisecond(now_ms) else { return closed };
        // One that opened yesterday may still be open.
        let mut day = zone.to_datetime(now).date().yesterday().ok();
        for _ in 0..DAYS_AHEAD + 2 {
            let Some(date) = day else { break };
            match self.of_day(date, zone) {
                Some((from_ms, to_ms)) if from_ms <= now_ms && now_ms < to_ms => {
                    return WindowState::Open { until_ms: Some(to_ms) };
                }
                Some((from_ms, _)) if from_ms > now_ms => return WindowState::Closed { opens_ms: Some(from_ms) },
                _ => {}
            }
            day = date.tomorrow().ok();
        }
        closed
    }
}

/// Whether hosts may begin now by the windows of places; those of hosts are the hosts' own matter. A zone that the database
/// does not have is never open.
#[must_use]
pub fn state(windows: &[Window], now_ms: Millis, zones: &TimeZoneDatabase) -> WindowState {
    let named = windows.iter().filter_map(|window| match &window.zone {
        WindowZone::Host => None,
        WindowZone::Named(name) => Some((window, name)),
    });
    let states: Vec<WindowState> = named
        .map(|(window, name)| match zones.get(name) {
            Ok(zone) => window.state(now_ms, &zone),
            Err(_) => WindowState::Closed { opens_ms: None },
        })
        .collect();
    if states.is_empty() { WindowState::Open { until_ms: None } } else { widest(&states) }
}

/// Whether a host may ask now, by the windows that are in its own zone. One that closes soon is closed: an answer may take
/// as long as the question counts.
#[must_use]
pub fn host_state(windows: &[Window], now_ms: Millis, zone: &TimeZone) -> WindowState {
    let own = windows.iter().filter(|window| window.zone == WindowZone::Host);
    let states: Vec<WindowState> = own
        .map(|window| match window.state(now_ms, zone) {
            WindowState::Open { until_ms: Some(until_ms) } => match until_ms - QUESTION_VALID_MS {
                last_ms if now_ms < last_ms => WindowState::Open { until_ms: Some(last_ms) },
                _ => window.state(until_ms, zone),
            },
            other => other,
        })
        .collect();
    if states.is_empty() { WindowState::Open { until_ms: None } } else { widest(&states) }
}

/// What several windows come to.
fn widest(states: &[WindowState]) -> WindowState {
    let mut open_ms = None;
    let mut opens_ms: Option<Millis> = None;
    for state in states {
        match *state {
            WindowState::Open { until_ms: None } => return *state,
            WindowState::Open { until_ms } => open_ms = open_ms.max(until_ms),
            WindowState::Closed { opens_ms: Some(at_ms) } => {
                opens_ms = Some(opens_ms.map_or(at_ms, |opens_ms| opens_ms.min(at_ms)));
            }
            WindowState::Closed { opens_ms: None } => {}
        }
    }
    match open_ms {
        Some(_) => WindowState::Open { until_ms: open_ms },
        None => WindowState::Closed { opens_ms },
    }
}

/// Reads the windows of a stored version that are in the zone of the host; for a host, which has no database of zones.
#[must_use]
pub fn of_host(rollout: &serde_json::Map<String, serde_json::Value>) -> Vec<Window> {
    let listed = rollout.get("windows").and_then(serde_json::Value::as_array).into_iter().flatten();
    let read = listed.filter_map(|window| window.as_str()?.parse::<Window>().ok());
    read.filter(|window| window.zone == WindowZone::Host).collect()
}

/// Reads a window whose zone has to exist.
pub(super) fn read(text: &str, zones: &TimeZoneDatabase) -> Result<Window, String> {
    let window: Window = text.parse()?;
    if let WindowZone::Named(name) = &window.zone
        && zones.get(name).is_err()
    {
        let known: Vec<String> = zones.available().map(|name| name.to_string()).collect();
        return Err(match known.is_empty() {
            true => format!("there is no time zone {name:?}"),
            false => format!("there is no time zone {name:?}; {}", nearest(name, &known)),
        });
    }
    Ok(window)
}

fn nearest(name: &str, known: &[String]) -> String {
    let hint = unknown_keys::nearest(name, known.iter().map(String::as_str));
    if hint.starts_with("known are") {
        "expected a zone such as Europe/Berlin, UTC, or `host`".to_owned()
    } else {
        hint
    }
}

const WANTED: &str = "expected days, times and a zone, such as 'Mon-Fri 02:00-05:00 Europe/Berlin'; the zone `host` is \
                      the host's own";

impl FromStr for Window {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (days, times, zone) = match *words.as_slice() {
            [days, times, zone] => (read_days(days)?, times, zone),
            [times, zone] => ([true; 7], times, zone),
            _ => return Err(format!("{text:?}: {WANTED}")),
        };
        let (from, to) = times
            .split_once('-')
            .and_then(|(from, to)| Some((read_time(from).filter(|from| *from < DAY_MINUTES)?, read_time(to)?)))
            .ok_or_else(|| format!("{times:?}: expected times such as 02:00-05:00; {WANTED}"))?;
        if from == to {
            return Err(format!("{times:?}: it is never open; a whole day is 00:00-24:00"));
        }
        let zone = if zone == "host" { WindowZone::Host } else { WindowZone::Named(zone.to_owned()) };
        let window = Self { days, from, to, zone };
        if window.length() < LENGTH_MIN_MINUTES {
            return Err(format!("{times:?}: it is open for less than {LENGTH_MIN_MINUTES} minutes"));
        }
        Ok(window)
    }
}

fn read_days(text: &str) -> Result<[bool; 7], String> {
    let mut found = [false; 7];
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (read_day(first)?, read_day(last)?);
        let mut day = first;
        loop {
            found[day] = true;
            if day == last {
                break;
            }
            day = (day + 1) % 7;
        }
    }
    Ok(found)
}

fn read_day(text: &str) -> Result<usize, String> {
    let is_it = |day: &&str| text.eq_ignore_ascii_case(day);
    DAYS.iter()
        .position(is_it)
        .ok_or_else(|| format!("{text:?} is not a day; use one of {}", DAYS.map(|day| format!("`{day}`")).join(", ")))
}

/// Reads a time of day, in minutes: `02:00`, up to `24:00`.
fn read_time(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str| match text.len() {
        1 | 2 if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse::<u16>().ok(),
        _ => None,
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    (minutes < 60 && hours * 60 + minutes <= DAY_MINUTES).then_some(hours * 60 + minutes)
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.days != [true; 7] {
            let mut runs: Vec<(usize, usize)> = Vec::new();
            for day in (0..7).filter(|day| self.days[*day]) {
                match runs.last_mut() {
                    Some((_, last)) if *last + 1 == day => *last = day,
                    _ => runs.push((day, day)),
                }
            }
            let name = |(first, last): &(usize, usize)| match first == last {
                true => DAYS[*first].to_owned(),
                false => format!("{}-{}", DAYS[*first], DAYS[*last]),
            };
            write!(f, "{} ", runs.iter().map(name).collect::<Vec<_>>().join(","))?;
        }
        let zone = match &self.zone {
            WindowZone::Host => "host",
            WindowZone::Named(name) => name,
        };
        let time = |minutes: u16| format!("{:02}:{:02}", minutes / 60, minutes % 60);
        write!(f, "{}-{} {zone}", time(self.from), time(self.to))
    }
}
