//! Describes containers in words, for tables and for one unit.

use muster_topics::{
    container::{ContainerSummary, Image, Mount, Network},
    process::Limits,
    unit::Spec,
};

/// Details of one unit: its image and runtime, the user inside, its mounts and its network (all empty if it is not a
/// container), and its limits.
#[must_use]
pub fn facts(spec: &Spec) -> [(&'static str, String); 5] {
    let container = spec.container();
    let shown = |of: &dyn Fn(&muster_topics::container::ContainerSpec) -> String| container.map(of).unwrap_or_default();
    let image = shown(&|container| {
        let what = match &container.image {
            Image::Rootfs(_) => "a root file system",
            Image::Archive(_) => "an archive",
            Image::Name(name) => name,
            Image::Existing(name) => return format!("none: the container {name} of {} was adopted", container.runtime),
        };
        format!("{what}, kept by {}", container.runtime)
    });
    let mounts = shown(&|container| container.mounts.iter().map(mount).collect::<Vec<_>>().join(", "));
    let network = shown(&|container| network(container.network).to_owned());
    [
        ("image", image),
        ("user inside", shown(&|container| container.program.user.clone().unwrap_or_default())),
        ("mounts", mounts),
        ("network", network),
        ("may use", limited(spec.limits(), container.and_then(|container| container.disk_bytes)).join(", ")),
    ]
}

pub(super) fn mount(mount: &Mount) -> String {
    let read_only = if mount.read_only { " (read only)" } else { "" };
    format!("{} as {}{read_only}", mount.host, mount.inside)
}

/// The word for a network, as in a spec.
#[must_use]
pub fn network(network: Network) -> &'static str {
    match network {
        Network::Bridge => "bridge",
        Network::Host => "host",
        Network::None => "none",
    }
}

/// A container in a list of all containers of a host.
#[must_use]
pub fn listed(name: &str, summary: &ContainerSummary) -> String {
    let ContainerSummary { state, unit, image, limits, runtime } = summary;
    let mut words = vec![format!("{name} {}, {runtime}", state.as_str())];
    words.push(unit.as_ref().map_or_else(|| "no unit".to_owned(), |unit| format!("unit {unit}")));
    words.extend((!image.is_empty()).then(|| image.clone()));
    words.extend(limited(*limits, None));
    words.join(", ")
}

/// Limits, as text.
pub(super) fn limited(limits: Limits, disk_bytes: Option<u64>) -> Vec<String> {
    let words = [
        limits.memory_bytes.map(|bytes| format!("memory {}", muster_topics::size::print(bytes))),
        limits.cpu.map(|cpu| format!("cpu {cpu}")),
        limits.pids.map(|pids| format!("pids {pids}")),
        disk_bytes.map(|bytes| format!("disk {}", muster_topics::size::print(bytes))),
    ];
    words.into_iter().flatten().collect()
}
