//! The outcome of retaining a message.

/// The effect of a message that was to be retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetainOutcome {
    Yes,
    /// It was empty: the topic has no retained message any more.
    Cleared,
    /// A limit is reached.
    Full,
}
