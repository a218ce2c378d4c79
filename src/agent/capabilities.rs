//! What this agent can do, by its build and by what its host has when it starts.

use std::path::Path;

use muster_topics::presence::Capability;

use super::{config::Config, execute::program_path::SEARCH_PATH};

/// The programs by which the agent knows that the host has Podman, LXC, and packages that it can manage.
const PODMAN_PROGRAM: &str = "podman";
const LXC_PROGRAM: &str = "lxc-start";
const PACKAGES_PROGRAM: &str = "dpkg";

/// Returns what the agent of this host can do.
pub(super) fn of_host(config: &Config) -> Vec<Capability> {
    // Where the agent itself finds them.
    let has_program = |name: &str| SEARCH_PATH.split(':').any(|folder| Path::new(folder).join(name).is_file());
    // When a host starts, the socket may come after the agent; that of Docker has no program of this name.
    let has_podman = config.containers.podman_socket.exists() || has_program(PODMAN_PROGRAM);
    list(has_podman, has_program(LXC_PROGRAM), has_program(PACKAGES_PROGRAM))
}

fn list(has_podman: bool, has_lxc: bool, has_packages: bool) -> Vec<Capability> {
    let build = [Capability::Exec, Capability::Yuno, Capability::Files];
    let of_host = [
        (has_podman || has_lxc, Capability::Container),
        (has_podman, Capability::Podman),
        (has_lxc, Capability::Lxc),
        (has_packages, Capability::Packages),
    ];
    let of_host = of_host.into_iter().filter(|(has, _)| *has).map(|(_, capability)| capability);
    build.into_iter().chain(of_host).chain([Capability::FreshTime]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_says_what_it_has() {
        let words = |list: &[Capability]| serde_json::to_value(list).unwrap().to_string();
        assert_eq!(words(&list(false, false, false)), r#"["exec","yuno","files","fresh_time"]"#);
        let all = r#"["exec","yuno","files","container","podman","lxc","packages","fresh_time"]"#;
        assert_eq!(words(&list(true, true, true)), all);
        assert_eq!(words(&list(false, true, false)), r#"["exec","yuno","files","container","lxc","fresh_time"]"#);
    }
}
