//! The subject of `muster top`: hosts or units.

use clap::ValueEnum;

/// Of what to show.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopSubject {
    /// Hosts
    Hosts,
    /// Units
    Units,
}
