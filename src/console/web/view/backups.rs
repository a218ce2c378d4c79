//! Backups of the console: how they are made, and the last ones with what is in them.

use maud::{Markup, html};
use muster_api::{Backup, Backups};

use super::{
    elements::{ago, count, empty},
    frame::{PageFrame, PageView, Section},
};

/// The page.
#[derive(Clone, Debug)]
pub(in crate::web) struct BackupsView {
    pub(in crate::web) backups: Backups,
}

impl PageView for BackupsView {
    fn title(&self) -> String {
        "Backups".to_owned()
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Alerts)
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        let Backups { recipients, every_hours, keep, dir, failed, backups, .. } = &self.backups;
        html! {
            h1 { "Backups of the console" }
            @if let Some(failed) = failed {
                p { strong { "The last attempt failed " (ago(failed.at_ms, frame.now_ms)) ": " } (format!("{:#}", failed.diagnostic)) }
            }
            @if recipients.is_empty() {
                (empty("No backups are made: no public key is configured.",
                       "Create a pair of keys on another machine, and put the public key into the console's configuration:",
                       "muster backup create-key --out key.txt"))
            } @else {
                @if *every_hours == 0 {
                    p { "No automatic backups." }
                } @else {
                    p { "One every " (count((*every_hours).into(), "hour", "hours")) ", of which " (keep) " are kept in " code { (dir) } "." }
                }
                p { "Encrypted to " @for (index, key) in recipients.iter().enumerate() { @if index > 0 { ", " } code { (key) } } "." }
            }
            @if !backups.is_empty() {
                table.cards {
                    caption.visually-hidden { "Backups" }
                    thead { tr {
                        th scope="col" { "File" } th scope="col" { "Created" } th scope="col" { "Size" } th scope="col" { "What is in it" }
                        th scope="col" { "Where" }
                    } }
                    tbody { @for backup in backups { (row(backup, frame)) } }
                }
            } @else if !recipients.is_empty() {
                (empty("There are no backups yet.", "Make one now:", "muster backup create"))
            }
        }
    }
}

fn row(backup: &Backup, frame: &PageFrame) -> Markup {
    html! {
        tr {
            th scope="row" { (backup.name) }
            td data-label="Created" { (ago(backup.taken_ms, frame.now_ms)) }
            td data-label="Size" { (muster_topics::size::print(backup.bytes)) }
            td data-label="What is in it" { (backup.contents()) }
            td data-label="Where" {
                @match (&backup.path, &backup.operator) {
                    (Some(path), _) => code { (path) },
                    (None, Some(operator)) => { "given to " (operator) },
                    (None, None) => "removed",
                }
            }
        }
    }
}
