//! What others have changed of a unit's files or packages, as reports and errors name it.

/// The most changes that are named: they are part of each report of the unit.
const NAMED_MAX: usize = 5;

/// Returns descriptions of changes in order, the first few of them, with how many more there are.
pub(super) fn shortened(mut differing: Vec<String>) -> Vec<String> {
    let more = differing.len().saturating_sub(NAMED_MAX);
    differing.sort();
    differing.truncate(NAMED_MAX);
    if more > 0 {
        differing.push(format!("and {more} more"));
    }
    differing
}
