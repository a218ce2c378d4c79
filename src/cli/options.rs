//! Options that several nouns have, each with its name, its value's name and its help in one place.

use clap::ValueEnum;

/// A value of an option that is on or off.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum YesOrNo {
    /// It is
    Yes,
    /// It is not
    No,
}

impl YesOrNo {
    /// Whether it is `yes`.
    #[must_use]
    pub fn is_yes(self) -> bool {
        self == Self::Yes
    }
}
