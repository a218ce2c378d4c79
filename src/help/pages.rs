//! Manual pages, made of the grammar.

use std::path::Path;

use clap::Command;
use muster_base::failure::{Failure, FailureContext};

/// Writes the manual pages of muster and of each verb into a folder, which is made if it does not exist.
///
/// # Errors
/// If they cannot be written.
pub(crate) fn write_manual(command: Command, folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).trying(format_args!("the folder {}", folder.display()))?;
    for (name, page) in manual(command) {
        let path = folder.join(name);
        std::fs::write(&path, page).trying(format_args!("the page {}", path.display()))?;
    }
    Ok(())
}

/// The manual pages: their file names and their text.
pub(super) fn manual(command: Command) -> Vec<(String, Vec<u8>)> {
    let mut command = super::for_people(command).disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, &mut pages);
    pages
}

/// Adds the pages of a verb and of those below it.
fn add_pages(verb: &Command, pages: &mut Vec<(String, Vec<u8>)>) {
    let page = clap_mangen::Man::new(verb.clone());
    let mut text = Vec::new();
    // Writing to memory does not fail.
    if page.render(&mut text).is_ok() {
        pages.push((page.get_filename(), text));
    }
    for below in verb.get_subcommands().filter(|below| !below.is_hide_set()) {
        add_pages(below, pages);
    }
}
