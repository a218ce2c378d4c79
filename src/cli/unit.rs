//! `muster unit`: the units that agents keep, of all four kinds; `muster yuno` and `muster container` are the same verbs for
//! one kind, with what only that kind has.
//!
//! - `verb`: the verbs, and what each does; `kinds`: which of them a noun lists
//! - `list`, `show`: lists units, and shows one
//! - `create_yuno`: makes a yuno (a container: [`container`](crate::container))
//!
//! **Invariant: which kinds have a verb is said by [`UNIT_VERBS`](muster_topics::verb_table::UNIT_VERBS) alone.** A verb resolves its
//! units by a [`NounVerb`](crate::target::NounVerb), which refuses a unit whose kind has no such verb.

mod create_yuno;
mod kinds;
mod list;
mod show;
mod verb;

pub use create_yuno::CreateYuno;
pub use kinds::{alias_of, of_containers, of_yunos};
pub use list::UnitListArgs;
pub(crate) use list::{doing, trouble};
pub use show::OneUnit;
pub use verb::{ContainerVerb, CreateKind, SharedVerb, UnitVerb, YunoVerb};
pub(super) use verb::{run, run_container, run_yuno};
