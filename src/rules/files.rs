//! Units of files: what is wrong with a spec; [`plan`]: what is done about a path.

pub mod plan;

use muster_topics::{
    diagnostic::Diagnostic,
    files::{FILES_MAX, FileEntry, FilesSpec, NOTICES_MAX, TEXTS_MAX_BYTES},
};

use super::{common, process::most};

/// Returns everything that is wrong with a spec, part by part.
#[must_use]
pub fn faults(spec: &FilesSpec) -> Vec<Diagnostic> {
    let texts = spec.files.values().flat_map(|entry| [&entry.text, &entry.template]).flatten().map(String::len).sum();
    let checks = [
        if spec.files.is_empty() { Err("files: the list is empty".into()) } else { Ok(()) },
        most("files", " entries", spec.files.len(), FILES_MAX),
        most("files", " bytes of texts and templates", texts, TEXTS_MAX_BYTES),
        most("on_change", " actions", spec.on_change.len(), NOTICES_MAX),
    ];
    let of_entries = spec.files.iter().flat_map(|(path, entry)| {
        [check_path(path), check_entry(entry)]
            .into_iter()
            .filter_map(Result::err)
            .map(move |fault| fault.within(format_args!("files.{path}")))
    });
    checks.into_iter().chain(common::checks(&spec.common)).filter_map(Result::err).chain(of_entries).collect()
}

/// Checks that a path is absolute and has no parts that lead elsewhere.
fn check_path(path: &str) -> Result<(), Diagnostic> {
    let Some(relative) = path.strip_prefix('/') else { return Err("it is not an absolute path".into()) };
    if path.contains('\0') || path.len() > PATH_MAX_BYTES {
        return Err(format!("it is not a path: a path has at most {PATH_MAX_BYTES} bytes, without zero bytes").into());
    }
    let is_odd = relative.split('/').any(|part| matches!(part, "" | "." | ".."));
    if is_odd {
        Err(Diagnostic::new("it has an empty part, `.` or `..`").with_hint("write the resolved path"))
    } else {
        Ok(())
    }
}

/// Linux's limit of a path.
const PATH_MAX_BYTES: usize = 4095;

fn check_entry(entry: &FileEntry) -> Result<(), Diagnostic> {
    let FileEntry { text, template, artifact, directory, link, absent, .. } = entry;
    // A folder may be filled from an artifact.
    let is_artifact = artifact.is_some() && directory.is_none();
    let forms = [text.is_some(), template.is_some(), is_artifact, directory.is_some(), link.is_some(), *absent];
    match forms.into_iter().filter(|is_form| *is_form).count() {
        1 => check_details(entry),
        0 => Err(Diagnostic::new("it has no content")
            .with_hint("use text, template, artifact, directory, link, or absent: true")),
        _ => Err("it has more than one of text, template, artifact, directory, link and absent".into()),
    }
}

/// Checks what goes with a form.
fn check_details(entry: &FileEntry) -> Result<(), Diagnostic> {
    let FileEntry { directory, link, absent, owner, group, mode, validate, .. } = entry;
    if let Some(mode) = mode.as_ref().filter(|mode| !u32::from_str_radix(mode, 8).is_ok_and(|mode| mode <= 0o7777)) {
        return Err(Diagnostic::new(format_args!("mode: {mode:?} is not a mode"))
            .with_hint("write it in octal, such as \"0644\""));
    }
    if *absent && (owner.is_some() || group.is_some() || mode.is_some()) || link.is_some() && mode.is_some() {
        return Err("it has owner, group or mode, which do not apply to this kind".into());
    }
    if link.as_ref().is_some_and(|to| to.is_empty() || to.contains('\0') || to.len() > PATH_MAX_BYTES) {
        return Err("link: the target is empty".into());
    }
    if [owner, group].into_iter().flatten().any(|name| name.is_empty() || name.len() > NAME_MAX_BYTES) {
        return Err("owner, group: it is not a name".into());
    }
    if validate.is_empty() {
        return Ok(());
    }
    if directory.is_some() || link.is_some() || *absent {
        return Err("validate: only files can be validated".into());
    }
    if validate.iter().any(|word| word.contains("{}")) {
        Ok(())
    } else {
        Err(Diagnostic::new("validate: it does not name the file").with_hint("`{}` stands for its path"))
    }
}

/// The longest name of a user or group, as systems have it.
const NAME_MAX_BYTES: usize = 256;

/// Describes an entry in a line.
#[must_use]
pub fn words(entry: &FileEntry) -> String {
    let FileEntry { text, template, artifact, directory, link, owner, group, mode, validate, .. } = entry;
    let from = artifact.as_ref().map(|artifact| format!("{}@{}", artifact.role, artifact.version));
    let mut words = vec![match (text, template, directory, link, from) {
        (Some(text), ..) => format!("text of {} bytes", text.len()),
        (_, Some(template), ..) => format!("template of {} bytes", template.len()),
        (_, _, Some(_), _, Some(from)) => format!("folder with the content of {from}"),
        (_, _, Some(_), _, None) => "folder".to_owned(),
        (_, _, None, Some(to), _) => format!("link to {to}"),
        (_, _, None, None, Some(from)) => format!("content of {from}"),
        (_, _, None, None, None) => "nothing".to_owned(),
    }];
    if let Some(directory) = directory {
        words.extend(directory.recurse.then(|| "with its content".to_owned()));
        words.extend(directory.purge.then(|| "purged".to_owned()));
    }
    words.extend(owner.as_ref().map(|owner| format!("owner {owner}")));
    words.extend(group.as_ref().map(|group| format!("group {group}")));
    words.extend(mode.as_ref().map(|mode| format!("mode {mode}")));
    words.extend(validate.first().map(|program| format!("checked by {program}")));
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn entry_is_described_in_a_line() {
        let of = |value: Value| words(&serde_json::from_value(value).unwrap());
        let artifact = json!({"sha256": "0".repeat(64), "size_bytes": 1, "role": "web", "version": "2"});
        assert_eq!(
            of(json!({"text": "abc", "mode": "0600", "owner": "root"})),
            "text of 3 bytes, owner root, mode 0600"
        );
        assert_eq!(
            of(json!({"directory": {"purge": true}, "artifact": artifact})),
            "folder with the content of web@2, purged"
        );
        assert_eq!(of(json!({"absent": true})), "nothing");
    }

    #[test]
    fn each_fault_names_its_place() {
        let of = |value: Value| faults(&serde_json::from_value(value).unwrap());
        assert!(of(json!({"files": {"/etc/a": {"text": "x"}, "/b": {"absent": true}}})).is_empty());
        let found = of(
            json!({"files": {"etc": {"text": ""}, "/a/../b": {"link": "x"}, "/c": {}, "/d": {"text": "", "link": ""}}}),
        );
        let begins: Vec<_> = found.iter().map(|fault| fault.cause.split(": ").next().unwrap()).collect();
        assert_eq!(begins, ["files./a/../b", "files./c", "files./d", "files.etc"], "{found:?}");
        for (entry, words) in [
            (json!({"text": "", "mode": "9"}), "octal"),
            (json!({"link": "x", "mode": "0644"}), "which do not apply to this kind"),
            (json!({"text": "", "validate": ["true"]}), "stands for its path"),
            (json!({"directory": {}, "validate": ["true", "{}"]}), "only files"),
            (json!({"text": "", "owner": ""}), "not a name"),
            (json!({"link": ""}), "target is empty"),
        ] {
            let found = of(json!({"files": {"/a": entry}}));
            assert!(found.len() == 1 && format!("{:#}", found[0]).contains(words), "{found:?}");
        }
        assert_eq!(of(json!({}))[0].cause, "files: the list is empty");
        assert!(of(json!({"files": {"/a": {"text": "x".repeat(TEXTS_MAX_BYTES + 1)}}}))[0].cause.contains("bytes"));
    }
}
