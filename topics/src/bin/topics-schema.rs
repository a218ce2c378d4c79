//! Writes `topics/schema/` anew from the types of this crate.

use std::{fs, io, path::Path};

fn main() -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema");
    fs::create_dir_all(&folder)?;
    for (name, document) in muster_topics::schema::documents() {
        fs::write(folder.join(name), document)?;
    }
    Ok(())
}
