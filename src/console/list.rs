//! Filters, sorts and limits lists, of units and of names in a sentence.

use muster_api::{Unit, UnitListing, UnitSort};
use muster_topics::unit::Phase;

/// Filters and sorts units; they come sorted by hostname and name.
pub(super) fn units(mut units: Vec<Unit>, wanted: &UnitListing) -> Vec<Unit> {
    units.retain(|unit| {
        let is_of_kind = wanted.kind.as_ref().is_none_or(|kind| kind.as_str() == unit.desired.spec.kind());
        is_of_kind && wanted.select.as_ref().is_none_or(|select| select.picks_unit(&unit.selectable()))
    });
    // Stable sorts keep the order of equals.
    match wanted.sort {
        UnitSort::Host => {}
        UnitSort::Unit => units.sort_by(|one, other| one.unit.cmp(&other.unit)),
        UnitSort::Phase => units.sort_by_key(place),
        UnitSort::Since => units.sort_by_key(|unit| std::cmp::Reverse(unit.observed.since_ms)),
    }
    units.truncate(wanted.limit.map_or(usize::MAX, |limit| limit as usize));
    units
}

/// Lists the first names, and how many more there are.
pub(super) fn first_names<T: AsRef<str>>(names: &[T], most: usize) -> String {
    let named = names.iter().take(most).map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(most) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// The rank of a unit by its state: those that need attention come first.
fn place(unit: &Unit) -> u8 {
    match unit.observed.phase() {
        _ if unit.retired().is_some() => 9,
        Phase::Failed => 0,
        Phase::Backoff => 1,
        Phase::Installing => 2,
        Phase::Starting => 3,
        Phase::Stopping => 4,
        Phase::Running => 5,
        Phase::Playing => 6,
        Phase::Stopped => 7,
        Phase::Absent => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::sample_unit;

    #[test]
    fn units_are_filtered_sorted_and_limited() {
        let unit = |hostname: &str, name: &str, phase: Phase, since_ms| {
            let mut unit = sample_unit();
            (unit.hostname, unit.unit, unit.hold) = (hostname.to_owned(), name.parse().unwrap(), None);
            (unit.observed.state, unit.observed.since_ms) = (phase.into(), since_ms);
            unit
        };
        let all = vec![
            unit("a", "x/one", Phase::Running, 5),
            unit("a", "x/two", Phase::Failed, 1),
            unit("b", "x/one", Phase::Backoff, 9),
        ];
        let check = |query: &str, wanted: &[&str]| {
            let listing: UnitListing =
                axum::extract::Query::try_from_uri(&format!("/?{query}").parse().unwrap()).unwrap().0;
            let found = units(all.clone(), &listing);
            let found: Vec<String> = found.iter().map(|unit| format!("{}:{}", unit.hostname, unit.unit)).collect();
            assert_eq!(found, wanted, "{query}");
        };
        check("", &["a:x/one", "a:x/two", "b:x/one"]);
        check("sort=unit", &["a:x/one", "b:x/one", "a:x/two"]);
        check("sort=phase", &["a:x/two", "b:x/one", "a:x/one"]);
        check("sort=since&limit=2", &["b:x/one", "a:x/one"]);
        check("select=phase%3Dfailed+or+host%3Db&limit=5", &["a:x/two", "b:x/one"]);
        check("kind=container", &[]);
        check("limit=0", &[]);
    }
}
