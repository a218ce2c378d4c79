//! Validates the spec of a container.

use muster_topics::{
    container::{ContainerSpec, IMAGE_NAME_MAX_BYTES, Image, LISTED_NAME_MAX_BYTES, MOUNTS_MAX, Mount, Network},
    diagnostic::Diagnostic,
    name::Name,
    signal::Signal,
};

use super::{
    common,
    process::{
        GRACE_MAX_MS, HEALTHY_WITHIN_MAX_MS, MEMORY_MAX_BYTES, SILENCE_MAX_MS, SILENCE_MIN_MS, STARTED_AFTER_MAX_MS,
        between, check_limits, check_rlimits, most,
    },
};

/// The least disk space for a container, in bytes: a smaller file system mostly holds its own metadata.
pub const DISK_MIN_BYTES: u64 = 8 * 1024 * 1024;

/// The most disk space: JSON represents whole numbers exactly up to this, as for memory.
pub const DISK_MAX_BYTES: u64 = MEMORY_MAX_BYTES;

/// Checks a spec.
///
/// # Errors
/// If something is wrong, with a message for its author.
pub fn check(spec: &ContainerSpec) -> Result<(), Diagnostic> {
    faults(spec).into_iter().next().map_or(Ok(()), Err)
}

/// Returns everything that is wrong with a spec, part by part.
#[must_use]
pub fn faults(spec: &ContainerSpec) -> Vec<Diagnostic> {
    let checks = [
        check_image(&spec.image),
        check_existing(spec),
        check_texts(spec),
        check_mounts(&spec.mounts),
        check_network(spec),
        check_limits(&spec.program.limits),
        spec.disk_bytes.map_or(Ok(()), |bytes| between("disk_bytes", bytes, DISK_MIN_BYTES, DISK_MAX_BYTES)),
        check_rlimits("rlimits", &spec.rlimits),
        check_stop(spec.program.stop_signal),
        check_times(spec),
    ];
    checks.into_iter().chain(common::checks(&spec.common)).filter_map(Result::err).collect()
}

/// Checks the name of an image, which becomes part of the path of a request to the runtime.
fn check_image(image: &Image) -> Result<(), Diagnostic> {
    let Image::Name(name) = image else { return Ok(()) };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:/@".contains(&byte);
    let parts_are_names = name.split('/').all(|part| part.starts_with(|first: char| first.is_ascii_alphanumeric()));
    if name.len() > IMAGE_NAME_MAX_BYTES || !name.bytes().all(is_plain) || !parts_are_names {
        let name: String = name.chars().take(40).collect();
        return Err(Diagnostic::new(format_args!("image.name {name:?} is not an image name"))
            .with_hint("REGISTRY/NAME:TAG, such as docker.io/library/alpine:3"));
    }
    Ok(())
}

/// Checks the spec of an existing container, which muster does not configure.
fn check_existing(spec: &ContainerSpec) -> Result<(), Diagnostic> {
    let Some(name) = spec.image.existing() else { return Ok(()) };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let begins_well = name.starts_with(|first: char| first.is_ascii_alphanumeric());
    if !begins_well || !name.bytes().all(is_plain) || name.len() > LISTED_NAME_MAX_BYTES {
        let name: String = name.chars().take(40).collect();
        return Err(Diagnostic::new(format_args!("image.existing {name:?} is not a container name"))
            .with_hint("`muster host show` lists them"));
    }
    let given = [
        ("entry", spec.entry.is_some()),
        ("args", !spec.program.args.is_empty()),
        ("env", !spec.program.env.is_empty()),
        ("render", spec.program.render),
        ("user", spec.program.user.is_some()),
        ("cwd", spec.program.cwd.is_some()),
        ("mounts", !spec.mounts.is_empty()),
        ("network", spec.network != Network::default()),
        ("disk_bytes", spec.disk_bytes.is_some()),
        ("rlimits", !spec.rlimits.is_empty()),
        ("provides", !spec.program.provides.is_empty()),
        ("needs", !spec.program.needs.is_empty()),
    ];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        Some((field, _)) => Err(Diagnostic::new(format_args!("{field}: {name} is adopted with its present settings"))
            .with_hint("leave it out")),
        None => Ok(()),
    }
}

/// Checks that a spec may replace another of the same unit: an adopted container cannot become anything else.
///
/// # Errors
/// If it may not, with a message for its author.
pub fn check_change(before: &ContainerSpec, after: &ContainerSpec) -> Result<(), Diagnostic> {
    let (was, is) = (before.image.existing(), after.image.existing());
    if was != is {
        let what = |name: Option<&str>| {
            name.map_or("a created one".to_owned(), |name| format!("the existing container {name}"))
        };
        return Err(Diagnostic::new(format_args!("image: it is {}, and cannot become {}", what(was), what(is)))
            .with_hint("remove it first, or choose another name"));
    }
    let (had, has) = (before.program.limits, after.program.limits);
    let taken = [
        ("memory_bytes", had.memory_bytes.is_some() && has.memory_bytes.is_none()),
        ("cpu", had.cpu.is_some() && has.cpu.is_none()),
        ("pids", had.pids.is_some() && has.pids.is_none()),
    ];
    match (is, taken.into_iter().find(|(_, is_taken)| *is_taken)) {
        (Some(name), Some((limit, _))) => Err(Diagnostic::new(format_args!(
            "limits.{limit}: removing a limit needs a new container, and {name} is adopted"
        ))
        .with_hint("a high one")),
        _ => Ok(()),
    }
}

fn check_texts(spec: &ContainerSpec) -> Result<(), Diagnostic> {
    if let Some(arg) = spec.program.args.iter().position(|arg| arg.contains('\0')) {
        return Err(format!("argument {} contains a NUL", arg + 1).into());
    }
    if spec.entry.iter().flatten().any(|word| word.contains('\0')) {
        return Err("entry contains a NUL".into());
    }
    if spec.entry.as_ref().is_some_and(|words| words.first().is_none_or(String::is_empty)) {
        return Err(Diagnostic::new("entry has no program").with_hint("leave it out for the image's own"));
    }
    // A root file system does not say which program to run.
    if matches!(spec.image, Image::Rootfs(_)) && spec.entry.is_none() && spec.program.args.is_empty() {
        return Err(Diagnostic::new("a root file system has no default program").with_hint("add entry or args"));
    }
    for (name, value) in &spec.program.env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(format!("environment variable {name:?} has no valid name or value").into());
        }
        if name.starts_with("MUSTER_") {
            return Err(format!(
                "environment variable {name} is reserved: names that begin with MUSTER_ belong to the agent"
            )
            .into());
        }
    }
    if spec.program.user.as_ref().is_some_and(|user| user.is_empty() || user.contains(['\0', '\n'])) {
        return Err(Diagnostic::new("user is not a user name").with_hint("USER or USER:GROUP, by name or number"));
    }
    match &spec.program.cwd {
        Some(cwd) => absolute("cwd", cwd),
        None => Ok(()),
    }
}

fn check_mounts(mounts: &[Mount]) -> Result<(), Diagnostic> {
    most("mounts", "", mounts.len(), MOUNTS_MAX)?;
    for (index, Mount { host, inside, .. }) in mounts.iter().enumerate() {
        absolute(&format!("mounts.{index}.host"), host)?;
        absolute(&format!("mounts.{index}.inside"), inside)?;
        if inside.trim_end_matches('/').is_empty() {
            return Err(format!("mounts.{index}.inside is /, which is the image").into());
        }
        if mounts[..index].iter().any(|other| other.inside == *inside) {
            return Err(format!("mounts.{index}.inside: {inside} is listed twice").into());
        }
    }
    Ok(())
}

/// Checks that a path is absolute and names the same place for every reader.
fn absolute(what: &str, path: &str) -> Result<(), Diagnostic> {
    if !path.starts_with('/') || path.contains(['\0', '\n']) {
        return Err(
            Diagnostic::new(format_args!("{what}: {path:?} is not an absolute path")).with_hint("begin it with /")
        );
    }
    if path.split('/').any(|part| part == "..") {
        return Err(format!("{what}: {path:?} has a part `..`").into());
    }
    Ok(())
}

fn check_network(spec: &ContainerSpec) -> Result<(), Diagnostic> {
    let provides = |name: &Name| spec.program.provides.iter().any(|provided| provided.name == *name);
    if let Some(name) = spec.ports.keys().find(|name| !provides(name)) {
        return Err(Diagnostic::new(format_args!("ports.{name}: it provides no {name}"))
            .with_hint(format_args!("add {{\"name\": \"{name}\"}} to provides")));
    }
    if let Some((name, _)) = spec.ports.iter().find(|(_, port)| **port == 0) {
        return Err(format!("ports.{name} is 0, which is not a port").into());
    }
    match spec.network {
        Network::None if !spec.program.provides.is_empty() => {
            Err(Diagnostic::new("network is none, so what it provides cannot be reached").with_hint("bridge or host"))
        }
        Network::Host if !spec.ports.is_empty() => {
            Err(Diagnostic::new("network is host, where a port inside is the host's own").with_hint("leave ports out"))
        }
        Network::Bridge | Network::None if !spec.program.needs.is_empty() => Err(Diagnostic::new(
            "needs are endpoints of the host, which only a container with network host or bridge reaches",
        )
        .with_hint("\"network\": \"host\"")),
        _ => Ok(()),
    }
}

fn check_stop(signal: Option<Signal>) -> Result<(), Diagnostic> {
    // For an immediate kill there is a grace period of zero.
    if signal == Some(Signal::Kill) {
        Err(Diagnostic::new("stop_signal is kill").with_hint("\"grace_ms\": 0"))
    } else {
        Ok(())
    }
}

fn check_times(spec: &ContainerSpec) -> Result<(), Diagnostic> {
    between("grace_ms", spec.program.grace_ms, 0, GRACE_MAX_MS)?;
    between("started_after_ms", spec.program.started_after_ms, 0, STARTED_AFTER_MAX_MS)?;
    between("start_timeout_ms", spec.program.start_timeout_ms, SILENCE_MIN_MS, SILENCE_MAX_MS)?;
    match spec.program.healthy_within_ms {
        Some(within_ms) if !spec.program.probes.tell_up() && within_ms <= spec.program.started_after_ms => {
            Err(format!(
                "healthy_within_ms is {within_ms}, and it is up after {} ms (started_after_ms) at the earliest, so it \
             would never be healthy",
                spec.program.started_after_ms
            )
            .into())
        }
        Some(within_ms) => between("healthy_within_ms", within_ms, SILENCE_MIN_MS, HEALTHY_WITHIN_MAX_MS),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check_fields(fields: Value, complaint: Option<&str>) {
        let mut spec = json!({"image": {"name": "docker.io/library/alpine:3"}});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let spec: ContainerSpec = serde_json::from_value(spec).unwrap();
        match (check(&spec), complaint) {
            (Ok(()), None) => {}
            (Err(error), Some(words)) if error.cause.starts_with(words) => {}
            (found, _) => panic!("{fields}: {found:?}"),
        }
    }

    fn rootfs() -> Value {
        json!({"rootfs": {"sha256": "0".repeat(64), "size_bytes": 5, "role": "shop", "version": "1"}})
    }

    #[test]
    fn valid_container_specs_are_accepted() {
        let web = json!([{"name": "web"}]);
        for fields in [
            json!({}),
            json!({"image": {"name": "registry:5000/shop/web@sha256:ab"}}),
            json!({"image": {"existing": "web_1.old-2"}, "limits": {"pids": 50}, "restart": "never", "labels": {"a": "b"}}),
            json!({"image": rootfs(), "args": ["/bin/true"]}),
            json!({"image": rootfs(), "entry": ["/bin/true"]}),
            json!({"mounts": [{"host": "/srv/a..b", "inside": "/data"}]}),
            json!({"provides": web, "ports": {"web": 80}}),
            json!({"provides": web, "network": "host"}),
            json!({"needs": web, "network": "host"}),
            json!({"disk_bytes": 8_388_608}),
            json!({"healthy_within_ms": 1_000, "probes": {"start": {"exec": ["true"]}}}),
            json!({"grace_ms": 0, "user": "1000:1000", "cwd": "/"}),
        ] {
            check_fields(fields, None);
        }
    }

    #[test]
    fn invalid_container_specs_are_refused() {
        let web = json!([{"name": "web"}]);
        let mount = |host: &str, inside: &str| json!({"host": host, "inside": inside});
        for (fields, complaint) in [
            (json!({"image": {"name": ""}}), "image.name"),
            (json!({"image": {"name": "../etc"}}), "image.name"),
            (json!({"image": {"name": "a//b"}}), "image.name"),
            (json!({"image": {"name": "a?b=c"}}), "image.name"),
            (json!({"image": {"name": "-a"}}), "image.name"),
            (json!({"image": {"existing": "a/b"}}), "image.existing"),
            (json!({"image": {"existing": ""}}), "image.existing"),
            (json!({"image": {"existing": ".a"}}), "image.existing"),
            (json!({"image": {"existing": "a".repeat(129)}}), "image.existing"),
            (json!({"image": {"existing": "a"}, "args": ["b"]}), "args: a is adopted"),
            (json!({"image": {"existing": "a"}, "env": {"A": "b"}}), "env: a is adopted"),
            (json!({"image": {"existing": "a"}, "network": "host"}), "network: a is adopted"),
            (json!({"image": {"existing": "a"}, "provides": web}), "provides: a is adopted"),
            (json!({"image": {"name": "a".repeat(256)}}), "image.name"),
            (json!({"image": rootfs()}), "a root file system has no default program"),
            (json!({"args": ["a\0"]}), "argument 1"),
            (json!({"entry": []}), "entry has no program"),
            (json!({"entry": ["a\0"]}), "entry contains"),
            (json!({"env": {"A=B": "c"}}), "environment variable"),
            (json!({"env": {"MUSTER_UNIT": "c"}}), "environment variable MUSTER_UNIT"),
            (json!({"user": ""}), "user"),
            (json!({"cwd": "srv"}), "cwd"),
            (json!({"mounts": [mount("srv", "/a")]}), "mounts.0.host"),
            (json!({"mounts": [mount("/srv/../etc", "/a")]}), "mounts.0.host"),
            (json!({"mounts": [mount("/srv", "a")]}), "mounts.0.inside"),
            (json!({"mounts": [mount("/srv", "//")]}), "mounts.0.inside is /"),
            (json!({"mounts": [mount("/a", "/c"), mount("/b", "/c")]}), "mounts.1.inside: /c is listed twice"),
            (json!({"mounts": (0..33).map(|n| mount("/a", &format!("/{n}"))).collect::<Vec<_>>()}), "mounts"),
            (json!({"ports": {"web": 80}}), "ports.web"),
            (json!({"provides": web, "ports": {"web": 0}}), "ports.web is 0"),
            (json!({"provides": web, "network": "none"}), "network is none"),
            (json!({"provides": web, "ports": {"web": 80}, "network": "host"}), "network is host"),
            (json!({"needs": web}), "needs are endpoints of the host"),
            (json!({"limits": {"memory_bytes": 5}}), "limits.memory_bytes"),
            (json!({"disk_bytes": 8_388_607}), "disk_bytes"),
            (json!({"image": {"existing": "a"}, "disk_bytes": 8_388_608}), "disk_bytes: a is adopted"),
            (json!({"rlimits": {"nofile": {"soft": 2, "hard": 1}}}), "rlimits.nofile"),
            (json!({"stop_signal": "kill"}), "stop_signal"),
            (json!({"grace_ms": 3_600_001}), "grace_ms"),
            (json!({"healthy_within_ms": 1_000}), "healthy_within_ms"),
            (json!({"start_timeout_ms": 0}), "start_timeout_ms"),
            (json!({"priority": 10}), "priority"),
        ] {
            check_fields(fields, Some(complaint));
        }
    }

    #[test]
    fn adopted_container_cannot_become_created() {
        let spec = |fields: Value| serde_json::from_value::<ContainerSpec>(fields).unwrap();
        let adopted = |name: &str, limits: &Value| spec(json!({"image": {"existing": name}, "limits": limits}));
        let made = |limits: &Value| spec(json!({"image": {"name": "a"}, "limits": limits}));
        let (none, some) = (json!({}), json!({"pids": 50, "cpu": 0.5}));
        for (before, after, complaint) in [
            (made(&none), made(&some), None),
            (made(&some), made(&none), None),
            (adopted("a", &none), adopted("a", &some), None),
            (adopted("a", &some), adopted("a", &json!({"pids": 60, "cpu": 1.0, "memory_bytes": 50_000_000})), None),
            (adopted("a", &some), adopted("a", &json!({"pids": 50})), Some("limits.cpu")),
            (adopted("a", &some), adopted("a", &none), Some("limits.cpu")),
            (adopted("a", &none), adopted("b", &none), Some("image: it is the existing container a")),
            (adopted("a", &none), made(&none), Some("image: it is the existing container a")),
            (made(&none), adopted("a", &none), Some("image: it is a created one")),
        ] {
            let found = check_change(&before, &after);
            match (&found, complaint) {
                (Ok(()), None) => {}
                (Err(error), Some(words)) if error.cause.starts_with(words) => {}
                _ => panic!("{before:?} to {after:?}: {found:?}"),
            }
        }
    }
}
