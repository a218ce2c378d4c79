//! The outcome of retaining a message.

/// What became of a message that was to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetainOutcome {
    Yes,
    /// It was empty: the topic has no retained message any more.
    Cleared,
    /// A limit is reached.
    Full,
}
