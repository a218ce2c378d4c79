//! Compares two specs field by field, for people.

use muster_topics::{
    name::UnitName,
    revision::RevisionKey,
    unit::{ArtifactRef, Desired, MASK, Run, Spec},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{config::differences, document};

/// One field in which a unit differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FieldDifference {
    /// The field, such as `limits.memory_bytes`.
    pub field: String,
    /// The present value, with secrets masked; `None` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Value>,
    /// The new value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Value>,
}

impl std::fmt::Display for FieldDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |value: &Option<Value>| match value {
            None => "nothing".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        match &self.from {
            None => write!(f, "{}: {}", self.field, shown(&self.to)),
            Some(_) => write!(f, "{}: {} → {}", self.field, shown(&self.from), shown(&self.to)),
        }
    }
}

/// Returns how a unit, as its host reports it, differs from what it would become; empty if it does not. `key` is the
/// host's key for revisions.
#[must_use]
pub fn compare(
    (unit, before): (&UnitName, &Desired),
    after: &Spec,
    run: Option<Run>,
    key: &RevisionKey,
) -> Vec<FieldDifference> {
    let mut before = before.clone();
    let mut after = after.clone();
    after.common_mut().restart_epoch = before.spec.common().restart_epoch;
    after.keep_values(&before.spec);
    let values = other_values((unit, &mut before), &after, key);
    let mut found = fields(Some((&before.spec, before.run)), Some((&after, run.unwrap_or(before.run))));
    found.extend(values.map(masked));
    found
}

/// A difference whose values are not shown.
#[must_use]
pub fn masked(field: String) -> FieldDifference {
    FieldDifference { field, from: Some(MASK.into()), to: Some(MASK.into()) }
}

/// Puts the values of `after`'s environment into a spec that was reported without them, if the reported revision shows that they are the same. Values that differ under the same names become a difference in
/// words.
#[must_use]
pub fn other_values((unit, before): (&UnitName, &mut Desired), after: &Spec, key: &RevisionKey) -> Option<String> {
    let Desired { spec: before, revision, .. } = before;
    let known = {
        let mut with = Spec::clone(before);
        let shared = after.env().iter().filter(|(name, _)| before.env().contains_key(*name));
        if let Some(program) = with.program_mut() {
            program.env.extend(shared.map(|(name, value)| (name.clone(), value.clone())));
        }
        with
    };
    if key.is_of(unit, &known, revision) {
        *before = known.into();
        return None;
    }
    let is_told = |name: &String| after.env().get(name).is_some_and(|value| value != MASK);
    // If a name is removed, its value is gone, and the others' values cannot be verified.
    let names_are_kept = before.env().keys().all(|name| after.env().contains_key(name));
    (names_are_kept && before.env().keys().any(is_told)).then(|| "env (values)".to_owned())
}

/// Returns the fields in which a unit of this host differs from what it would become, where both are known wholly: values of
/// environments are compared, and not shown. Texts of files are left out: what they change is seen on the host.
#[must_use]
pub fn known_fields(before: (&Spec, Run), after: (&Spec, Run)) -> Vec<FieldDifference> {
    let mut found = fields(Some(before), Some(after));
    found.retain(|one| {
        let is_text = one.field.ends_with(".text") || one.field.ends_with(".template");
        !(is_text && one.field.starts_with("files["))
    });
    let (old, new) = (before.0.env(), after.0.env());
    let differs = |name: &&String| old.get(*name).zip(new.get(*name)).is_some_and(|(old, new)| old != new);
    found.extend(old.keys().filter(differs).map(|name| masked(format!("env.{name}"))));
    found
}

/// Returns a JSON pointer as people write it: `files["/etc/motd"].mode`.
fn field_of(pointer: &str) -> String {
    let mut field = String::new();
    for part in pointer.split('/').skip(1) {
        let part = part.replace("~1", "/").replace("~0", "~");
        let is_word = part.chars().all(|one| one.is_alphanumeric() || "_-".contains(one));
        match (is_word, field.is_empty()) {
            (true, true) => field.push_str(&part),
            (true, false) => field.extend([".", &part]),
            (false, _) => field.push_str(&format!("[{part:?}]")),
        }
    }
    field
}

/// Returns the fields in which two units differ.
#[must_use]
pub fn fields(before: Option<(&Spec, Run)>, after: Option<(&Spec, Run)>) -> Vec<FieldDifference> {
    let all_fields = |unit: Option<(&Spec, Run)>| {
        Value::Object(unit.map(|(spec, run)| document::all_fields(spec, run)).unwrap_or_default())
    };
    let mut found: Vec<FieldDifference> = differences(&all_fields(before), &all_fields(after))
        .into_iter()
        .map(|one| FieldDifference { field: field_of(&one.pointer), from: one.from, to: one.to })
        .collect();
    // The same label may have named another content before.
    let content = |unit: Option<(&Spec, Run)>| unit?.0.artifact().cloned();
    if let (Some(one), Some(other)) = (content(before), content(after))
        && one.sha256 != other.sha256
        && (&one.role, &one.version) == (&other.role, &other.version)
    {
        let short = |artifact: &ArtifactRef| Some(artifact.sha256.short().into());
        found.push(FieldDifference { field: "artifact.sha256".to_owned(), from: short(&one), to: short(&other) });
    }
    found
}

#[cfg(test)]
mod tests {
    use muster_topics::{name::Digest, unit::YunoSpec};

    use super::*;

    fn spec(change: impl FnOnce(&mut YunoSpec)) -> Spec {
        let artifact = serde_json::json!({ "sha256": Digest::of(b"a"), "size_bytes": 1, "role": "a", "version": "1" });
        let mut spec = YunoSpec::new(serde_json::from_value(artifact).unwrap());
        spec.program.env.insert("PIN".to_owned(), "4711".to_owned());
        change(&mut spec);
        Spec::Yuno(spec)
    }

    #[test]
    fn changed_environment_is_named_and_not_shown() {
        let before = spec(|_| ());
        let after = spec(|spec| drop(spec.program.env.insert("PIN".to_owned(), "4712".to_owned())));
        let found = known_fields((&before, Run::Running), (&after, Run::Running));
        assert_eq!(found, [masked("env.PIN".to_owned())]);
        assert_eq!(known_fields((&before, Run::Running), (&before, Run::Running)), []);
        let stopped = known_fields((&before, Run::Running), (&before, Run::Stopped));
        assert_eq!(stopped[0].to_string(), "run: running → stopped");
    }

    #[test]
    fn place_is_written_as_people_do() {
        for (pointer, field) in [
            ("/env/PIN", "env.PIN"),
            ("/files/~1etc~1motd/mode", r#"files["/etc/motd"].mode"#),
            ("/values/vars.a", r#"values["vars.a"]"#),
            ("/on_change/0/a~0b", r#"on_change.0["a~b"]"#),
        ] {
            assert_eq!(field_of(pointer), field);
        }
    }

    #[test]
    fn masked_values_are_compared_by_revision() {
        let (unit, key): (UnitName, _) = ("a/till".parse().unwrap(), RevisionKey::from_bytes([1; 32]));
        let there = spec(|_| ());
        let other_key = RevisionKey::from_bytes([2; 32]);
        let differences = |revision: Digest, after: &Spec| {
            let before =
                Desired { generation: 1, revision, spec: there.masked().into(), run: Run::Running, frozen: false };
            let fields = compare((&unit, &before), after, None, &key).into_iter();
            fields.map(|difference| difference.field).collect::<Vec<_>>()
        };
        let revision = key.revision(&unit, &there).unwrap();
        let check = |after: Spec, wanted: &[&str]| assert_eq!(differences(revision.clone(), &after), wanted);
        check(there.clone(), &[]);
        check(there.masked(), &[]);
        check(spec(|spec| spec.program.grace_ms = 5), &["grace_ms"]);
        check(spec(|spec| drop(spec.program.env.insert("PIN".to_owned(), "4712".to_owned()))), &["env (values)"]);
        // A revision with another host's key, or none, cannot be compared here.
        for other in [other_key.revision(&unit, &there).unwrap(), there.revision().unwrap()] {
            assert_eq!(differences(other, &there), ["env (values)"]);
        }
    }
}
