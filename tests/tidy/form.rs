//! Until the first release, a change of what is stored counts its form up.

use std::{fs, path::Path};

use muster_base::form::FORM;
use muster_topics::name::Digest;

/// The first migration of each store.
const MIGRATIONS: [&str; 4] = ["src/agent/store", "src/console/store", "src/series", "src/simulate"];

/// The form, and the hash of the migrations that make it.
const KNOWN: (u16, &str) = (2, "9d0da867cb82d118b27cb2df2f2084453934b58cae8d46fe02f1bdd464839d91");

#[test]
fn changed_migration_counts_the_form_up() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut texts = String::new();
    for store in MIGRATIONS {
        let folder = root.join(store).join("migrations");
        let folder = if folder.join("sqlite").is_dir() { folder.join("sqlite") } else { folder };
        let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["0001_first.sql"], "{store}: there is one migration until the first release");
        texts += &fs::read_to_string(folder.join(&names[0])).unwrap();
    }
    let found = Digest::of(texts.as_bytes());
    assert_eq!(
        (FORM, found.as_str()),
        KNOWN,
        "a migration has changed: count FORM up in src/base/form.rs, and put both here; what tests keep of an older build stays"
    );
}
