//! Orders the starts and stops of a host's units.
//!
//! A unit names the units it comes `after`, those it `requires`, and its `priority` (0 to 9, lower first). A unit waits
//! for those it comes after while they are starting, and for those it requires until they run. Priority orders
//! simultaneous starts, such as after a boot, and never waits for more than a launch.
//!
//! **Invariant: some unit can always start**: one that waits for none, or only for units of a lower or equal priority.
//! So dependencies must have no cycle, which [`cycle`] finds before they are accepted.

use std::collections::{BTreeMap, BTreeSet};

use muster_topics::{name::UnitName, unit::Spec};

/// Whether other units allow a unit to start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StartGate {
    /// It may start.
    #[default]
    Open,
    /// Other units start first, and are starting now.
    Turn,
    /// A unit that it requires is on its way; the message says which.
    Wait(String),
    /// A unit that it requires will not start by itself; the message says which.
    Blocked(String),
}

/// What other units can expect of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// It runs.
    Running,
    /// It runs, but is not ready.
    Unready,
    /// It should run, and is on its way.
    Coming,
    /// It does not run, and will not by itself.
    Down,
}

/// What the start order needs to know of a unit.
#[derive(Clone, Copy, Debug)]
pub struct OrderNode<'a> {
    /// Its spec.
    pub spec: &'a Spec,
    /// What others can expect of it.
    pub way: Expectation,
    /// Whether it is being started.
    pub launching: bool,
    /// Whether it would start now if no other unit prevented it.
    pub starts: bool,
}

/// All units of a host.
pub type OrderNodes<'a> = BTreeMap<&'a UnitName, OrderNode<'a>>;

/// Returns whether other units allow `unit` to start.
#[must_use]
pub fn gate(unit: &UnitName, nodes: &OrderNodes<'_>) -> StartGate {
    let Some(node) = nodes.get(unit) else { return StartGate::Open };
    let needs = needs(node.spec, nodes);
    if needs != StartGate::Open {
        return needs;
    }
    let priority = node.spec.common().priority;
    let goes_first = |other: &OrderNode<'_>| {
        let is_about_to = other.launching || other.starts && self::needs(other.spec, nodes) == StartGate::Open;
        other.spec.common().priority < priority && is_about_to
    };
    if nodes.values().any(goes_first) { StartGate::Turn } else { StartGate::Open }
}

/// Returns the same by its requirements alone.
fn needs(spec: &Spec, nodes: &OrderNodes<'_>) -> StartGate {
    let (after, requires) = (&spec.common().after, &spec.common().requires);
    let way = |unit: &UnitName| nodes.get(unit).map(|node| node.way);
    for unit in requires {
        match way(unit) {
            None => return StartGate::Blocked(format!("there is no unit {unit}")),
            Some(Expectation::Down) => return StartGate::Blocked(format!("{unit} is not running")),
            Some(Expectation::Running | Expectation::Unready | Expectation::Coming) => {}
        }
    }
    if let Some(unit) = requires.iter().find(|unit| way(unit) == Some(Expectation::Unready)) {
        return StartGate::Wait(format!("{unit} is running and not ready"));
    }
    let coming = requires.iter().chain(after).find(|unit| way(unit) == Some(Expectation::Coming));
    coming.map_or(StartGate::Open, |unit| StartGate::Wait(format!("{unit} is starting")))
}

/// Returns the circle of dependencies that would arise if `unit` became this: from the unit back to itself.
#[must_use]
pub fn cycle<'a>(
    unit: &'a UnitName,
    spec: &'a Spec,
    others: &BTreeMap<&'a UnitName, &'a Spec>,
) -> Option<Vec<UnitName>> {
    let needed = |name: &UnitName| {
        let spec = if name == unit { Some(spec) } else { others.get(name).copied() };
        spec.map(|spec| spec.common().requires.iter().chain(&spec.common().after)).into_iter().flatten()
    };
    // Depth-first from the unit; a unit that led to no circle never will.
    let mut seen = BTreeSet::from([unit]);
    let mut path = vec![(unit, needed(unit))];
    while let Some((_, rest)) = path.last_mut() {
        match rest.next() {
            Some(next) if next == unit => {
                return Some(path.iter().map(|(name, _)| (*name).clone()).chain([unit.clone()]).collect());
            }
            Some(next) if seen.insert(next) => {
                let more = needed(next);
                path.push((next, more));
            }
            Some(_) => {}
            None => drop(path.pop()),
        }
    }
    None
}

/// Returns the order in which to stop units of one host: dependents first, then higher priorities before lower ones.
/// Units of one wave may stop at the same time.
#[must_use]
pub fn stop_waves<'a>(units: &BTreeMap<&'a UnitName, &'a Spec>) -> Vec<Vec<&'a UnitName>> {
    let mut left = units.clone();
    let mut waves = Vec::new();
    while !left.is_empty() {
        let needed: BTreeSet<&UnitName> = left
            .iter()
            .flat_map(|(name, spec)| {
                spec.common().requires.iter().chain(&spec.common().after).filter(move |needed| needed != name)
            })
            .collect();
        let free = |name: &UnitName| !needed.contains(name);
        // Units in a circle, which should not exist, are stopped all the same.
        let top = left.iter().filter(|(name, _)| free(name)).map(|(_, spec)| spec.common().priority).max();
        let wave: Vec<&UnitName> = left
            .iter()
            .filter(|(name, spec)| top.is_none_or(|top| free(name) && spec.common().priority == top))
            .map(|(name, _)| *name)
            .collect();
        left.retain(|name, _| !wave.contains(name));
        waves.push(wave);
    }
    waves
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> UnitName {
        format!("default/{text}").parse().unwrap()
    }

    /// Parses `name 3 after:a,b requires:c`; all but the name is optional.
    fn parse(text: &str) -> (UnitName, Spec) {
        let mut words = text.split(' ');
        let unit = name(words.next().unwrap());
        let artifact = serde_json::json!({"sha256": "0".repeat(64), "size_bytes": 1, "role": "a", "version": "1"});
        let mut spec = serde_json::json!({"kind": "yuno", "artifact": artifact});
        for word in words {
            match word.split_once(':') {
                Some((field, names)) => spec[field] = names.split(',').map(|text| name(text).to_string()).collect(),
                None => spec["priority"] = word.parse::<u8>().unwrap().into(),
            }
        }
        (unit, serde_json::from_value(spec).unwrap())
    }

    /// Each line is a unit after a sign: `+` runs, `?` runs and is not ready, `~` is starting and would start now,
    /// `!` is starting, `-` is not running. Checks the gate of the last one.
    #[track_caller]
    fn check(lines: &[&str], wanted: &str) {
        let parsed: Vec<(char, (UnitName, Spec))> =
            lines.iter().map(|line| (line.chars().next().unwrap(), parse(&line[1..]))).collect();
        let node = |sign: char, spec| OrderNode {
            spec,
            way: match sign {
                '+' => Expectation::Running,
                '?' => Expectation::Unready,
                '~' | '!' => Expectation::Coming,
                _ => Expectation::Down,
            },
            launching: sign == '!',
            starts: sign == '~',
        };
        let nodes: OrderNodes<'_> = parsed.iter().map(|(sign, (unit, spec))| (unit, node(*sign, spec))).collect();
        let found = match gate(&parsed.last().unwrap().1.0, &nodes) {
            StartGate::Open => "open".to_owned(),
            StartGate::Turn => "turn".to_owned(),
            StartGate::Wait(what) => format!("wait: {what}"),
            StartGate::Blocked(what) => format!("blocked: {what}"),
        };
        assert_eq!(found, wanted, "{lines:?}");
    }

    #[test]
    fn unit_waits_for_its_dependencies() {
        check(&["~web"], "open");
        check(&["+db", "~web requires:db"], "open");
        check(&["~db", "~web requires:db"], "wait: default/db is starting");
        check(&["-db", "~web requires:db"], "blocked: default/db is not running");
        check(&["~web requires:db"], "blocked: there is no unit default/db");
        check(&["~a", "-b", "~web requires:a,b"], "blocked: default/b is not running");
        // `after` waits only while the other unit is starting.
        check(&["~db", "~web after:db"], "wait: default/db is starting");
        check(&["-db", "~web after:db"], "open");
        // A running unit may never become ready again: only `requires` waits for that.
        check(&["?db", "~web requires:db"], "wait: default/db is running and not ready");
        check(&["?db", "~web after:db"], "open");
        check(&["?db", "-a", "~web requires:db,a"], "blocked: default/a is not running");
        check(&["~web after:db"], "open");
    }

    #[test]
    fn lower_priority_number_starts_first() {
        check(&["~a 1", "~b"], "turn");
        check(&["!a 1", "~b"], "turn");
        check(&["+a 1", "~b"], "open");
        check(&["-a 1", "~b"], "open");
        check(&["~a 5", "~b 5"], "open");
        check(&["~a 9", "~b 1"], "open");
        // A unit that waits itself lets others go first, or none would start.
        check(&["~a 1 after:b", "~b 9"], "open");
        check(&["~b 9", "~a 1 after:b"], "wait: default/b is starting");
    }

    #[track_caller]
    fn check_cycle(lines: &[&str], wanted: &str) {
        let parsed: Vec<(UnitName, Spec)> = lines.iter().map(|line| parse(line)).collect();
        let ((unit, spec), others) = parsed.split_last().unwrap();
        let others = others.iter().map(|(unit, spec)| (unit, spec)).collect();
        let found = cycle(unit, spec, &others).unwrap_or_default();
        let found: Vec<String> = found.iter().map(|unit| unit.name().to_string()).collect();
        assert_eq!(found.join(" "), wanted, "{lines:?}");
    }

    #[test]
    fn cycle_is_found_with_its_names() {
        check_cycle(&["a"], "");
        check_cycle(&["a after:a"], "a a");
        check_cycle(&["a requires:b", "b after:a"], "b a b");
        check_cycle(&["a requires:b", "b after:c", "c"], "");
        check_cycle(&["a requires:b", "b after:c", "c requires:x,a"], "c a b c");
        // A dependency that does not exist closes no circle; the check is repeated when it is created.
        check_cycle(&["a requires:b", "c requires:a,x"], "");
        check_cycle(&["a after:d", "b after:d", "d", "c after:a,b"], "");
    }

    #[test]
    fn dependent_unit_stops_first() {
        let parsed = ["db 1", "web requires:db", "log 0", "job after:web", "x", "y 9"].map(parse);
        let waves = stop_waves(&parsed.iter().map(|(unit, spec)| (unit, spec)).collect());
        let waves: Vec<String> = waves
            .iter()
            .map(|wave| wave.iter().map(|unit| unit.name().to_string()).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(waves, ["y", "job x", "web", "db", "log"]);
    }

    fn units() -> impl Strategy<Value = Vec<(UnitName, Spec)>> {
        let line = (0u8..10, prop::collection::vec(0usize..8, 0..3), prop::collection::vec(0usize..8, 0..3));
        prop::collection::vec(line, 1..8).prop_map(|lines| {
            let list = |field: &str, numbers: &[usize]| match numbers {
                [] => String::new(),
                numbers => {
                    let names: Vec<String> = numbers.iter().map(|number| format!("u{number}")).collect();
                    format!(" {field}:{}", names.join(","))
                }
            };
            let text = |(index, (priority, after, requires)): (usize, &(u8, Vec<usize>, Vec<usize>))| {
                format!("u{index} {priority}{}{}", list("after", after), list("requires", requires))
            };
            lines.iter().enumerate().map(|line| parse(&text(line))).collect()
        })
    }

    proptest! {
        /// However units are ordered, as long as each was accepted, all that can start do start.
        #[test]
        fn some_unit_can_always_start(units in units()) {
            let mut let_in: BTreeMap<&UnitName, &Spec> = BTreeMap::new();
            for (unit, spec) in &units {
                if cycle(unit, spec, &let_in).is_none() {
                    let_in.insert(unit, spec);
                }
            }
            let mut running: BTreeSet<&UnitName> = BTreeSet::new();
            loop {
                // A unit with blocked requirements prevents no other.
                let mut blocked: BTreeSet<&UnitName> = BTreeSet::new();
                let nodes = loop {
                    let node = |(unit, spec): (&&UnitName, &&'_ Spec)| {
                        let way = match (running.contains(*unit), blocked.contains(*unit)) {
                            (true, _) => Expectation::Running,
                            (_, true) => Expectation::Down,
                            _ => Expectation::Coming,
                        };
                        OrderNode { spec: let_in[*unit], way, launching: false, starts: way == Expectation::Coming && spec.kind() == "yuno" }
                    };
                    let nodes: OrderNodes<'_> = let_in.iter().map(|(unit, spec)| (*unit, node((unit, spec)))).collect();
                    let more: Vec<&UnitName> = let_in
                        .keys()
                        .copied()
                        .filter(|unit| !blocked.contains(unit) && matches!(gate(unit, &nodes), StartGate::Blocked(_)))
                        .collect();
                    if more.is_empty() {
                        break nodes;
                    }
                    blocked.extend(more);
                };
                let left: Vec<&UnitName> =
                    let_in.keys().copied().filter(|unit| !running.contains(unit) && !blocked.contains(unit)).collect();
                if left.is_empty() {
                    break;
                }
                let goes = left.iter().find(|unit| gate(unit, &nodes) == StartGate::Open);
                prop_assert!(goes.is_some(), "all wait: {:?}", left);
                running.extend(goes);
            }
        }

        #[test]
        fn all_units_stop_eventually(units in units()) {
            let units: BTreeMap<&UnitName, &Spec> = units.iter().map(|(unit, spec)| (unit, spec)).collect();
            let stopped: Vec<&UnitName> = stop_waves(&units).into_iter().flatten().collect();
            prop_assert_eq!(stopped.len(), units.len());
        }
    }
}
