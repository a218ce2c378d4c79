//! `muster unit create container` and `muster container clone`: make a container without a document.

use std::collections::BTreeMap;

use clap::Args;
use muster_api::{HostUnit, Unit};
use muster_base::failure::{Failure, FailureKind};
use muster_topics::{
    common::ProgramSpec,
    container::{ContainerSpec, Image, Mount, Network, Runtime},
    name::{Name, NameError},
    unit::{MASK, Run, Spec},
};

use crate::{
    artifact,
    change::{WaitOptions, make},
    endpoint,
    environment::EnvironmentArgs,
    host_lookup,
    policy::{self, parse_word},
    probe,
    process::LimitFields,
    rollback::{OnFailure, millis},
    session::CliSession,
    target::{self, UnitRef},
    unit_lookup::{named, one},
};

/// Make a container; with --replace, have the one of this name be another.
#[derive(Args, Clone, Debug)]
pub struct CreateContainer {
    /// Unit: REALM/NAME or HOST:REALM/NAME
    unit: UnitRef,
    /// Host, by id or hostname [default: the context's, or the only one]
    #[arg(long)]
    host: Option<String>,
    #[command(flatten)]
    made_of: ContainerSource,
    /// Runtime
    #[arg(long, default_value = "podman", value_parser = parse_word::<Runtime>)]
    runtime: Runtime,
    /// Program in place of the image's entry point; repeatable
    ///
    /// Given several times, the first is the program and the others are its arguments.
    #[arg(long = "entry", value_name = "ARG")]
    entry: Vec<String>,
    #[command(flatten)]
    environment: EnvironmentArgs,
    /// User inside, by name or number: USER or USER:GROUP
    #[arg(long)]
    user: Option<String>,
    /// Working directory inside
    #[arg(long, value_name = "FOLDER")]
    cwd: Option<String>,
    /// File or folder of the host to mount inside; repeatable
    ///
    /// Both paths are absolute.
    #[arg(long = "mount", value_name = "HOST:INSIDE[:ro]", value_parser = parse_mount)]
    mounts: Vec<Mount>,
    /// Network: bridge (its own), host or none
    #[arg(long, default_value = "bridge", value_parser = parse_word::<Network>)]
    network: Network,
    /// Port inside that an endpoint leads to; repeatable
    #[arg(long = "port", value_name = "ENDPOINT=PORT", value_parser = parse_port)]
    ports: Vec<(Name, u16)>,
    /// What it may use
    #[command(flatten)]
    limited: LimitFields,
    /// Disk space beside its image, such as 2G
    ///
    /// Only where its host can limit that.
    #[arg(long, value_name = "BYTES", value_parser = muster_topics::size::parse)]
    disk: Option<u64>,
    /// Where it listens, and what it connects to
    #[command(flatten)]
    endpoints: endpoint::EndpointOptions,
    /// How it is found out whether it is well
    #[command(flatten)]
    probes: probe::ProbeOptions,
    /// Time within which --start and --ready must succeed
    ///
    /// It is ended if they do not.
    #[arg(long, value_name = "TIME", default_value = "90s")]
    start_timeout: humantime::Duration,
    /// When it is started, and how it ends
    #[command(flatten)]
    policy: policy::PolicyOptions,
    /// What becomes of a change that does not work
    #[command(flatten)]
    trial: OnFailure,
    /// Start it
    #[arg(long)]
    run: bool,
    /// Replace what is there
    ///
    /// What is not given gets its default.
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    wait: WaitOptions,
    /// Arguments; the whole command if the image has no entry point
    #[arg(last = true, value_name = "ARG")]
    args: Vec<String>,
}

/// What a container is made of: one of these.
#[derive(Args, Clone, Debug)]
#[group(id = "made_of", required = true, multiple = false)]
struct ContainerSource {
    /// Image that the host's runtime has or can pull
    #[arg(long, value_name = "NAME")]
    image: Option<String>,
    /// Artifact that is a tarball of a root file system
    ///
    /// ROLE@VERSION, ROLE for the newest, or a SHA-256.
    #[arg(long, value_name = "ARTIFACT")]
    rootfs: Option<String>,
    /// Artifact that is an archive of one image
    ///
    /// As `podman save` and `docker save` write it.
    #[arg(long, value_name = "ARTIFACT")]
    archive: Option<String>,
}

/// Make another container of what one is made of.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "What the first container has written stays with it: the new one begins with its image.")]
pub struct CloneContainer {
    /// Container to clone: REALM/NAME or HOST:REALM/NAME
    from: UnitRef,
    /// Name of the new one: REALM/NAME or HOST:REALM/NAME
    ///
    /// REALM/NAME is on the same host.
    to: UnitRef,
    /// Host of the first, by id or hostname [default: the only one]
    #[arg(long)]
    host: Option<String>,
    #[command(flatten)]
    environment: EnvironmentArgs,
    /// Start it
    #[arg(long)]
    run: bool,
    #[command(flatten)]
    wait: WaitOptions,
}

fn parse_mount(text: &str) -> Result<Mount, String> {
    let (paths, read_only) = text.strip_suffix(":ro").map_or((text, false), |paths| (paths, true));
    let (host, inside) =
        paths.split_once(':').ok_or("use HOST:INSIDE, such as /srv/shop:/data, or /etc/shop:/etc/shop:ro")?;
    Ok(Mount { host: host.to_owned(), inside: inside.to_owned(), read_only })
}

fn parse_port(text: &str) -> Result<(Name, u16), String> {
    let (name, port) = text.split_once('=').ok_or("use ENDPOINT=PORT, such as http=80")?;
    let name = name.parse().map_err(|error: NameError| error.to_string())?;
    Ok((name, port.parse().map_err(|_| format!("{port:?} is not a port"))?))
}

impl ContainerSource {
    async fn find(self, session: &CliSession) -> Result<Image, Failure> {
        let found = |text: String| async move { artifact::find(session, &text).await.map(Into::into) };
        match (self.image, self.rootfs, self.archive) {
            (Some(name), _, _) => Ok(Image::Name(name)),
            (_, Some(rootfs), _) => found(rootfs).await.map(Image::Rootfs),
            (_, _, Some(archive)) => found(archive).await.map(Image::Archive),
            (None, None, None) => Err(Failure::new(FailureKind::Usage, "pass --image, --rootfs or --archive")),
        }
    }
}

/// Creates a container from the options.
///
/// # Errors
/// If it is refused, or if it does not become as desired in time.
pub(crate) async fn create(create: CreateContainer, session: &CliSession) -> Result<(), Failure> {
    let host = host_lookup::one(session, create.unit.host.clone().or(create.host)).await?;
    let (provides, needs) = create.endpoints.into_fields();
    let mut spec = ContainerSpec {
        runtime: create.runtime,
        entry: (!create.entry.is_empty()).then_some(create.entry),
        mounts: create.mounts,
        network: create.network,
        disk_bytes: create.disk,
        rlimits: create.limited.rlimits(),
        ports: create.ports.into_iter().collect(),
        program: ProgramSpec {
            args: create.args,
            env: create.environment.variables()?,
            user: create.user,
            cwd: create.cwd,
            limits: create.limited.limits(),
            provides,
            needs,
            probes: create.probes.into_field(),
            start_timeout_ms: millis(create.start_timeout),
            ..ProgramSpec::default()
        },
        ..ContainerSpec::new(create.made_of.find(session).await?)
    };
    create.policy.put_into(&mut spec.common, &mut spec.program);
    create.trial.put_into(&mut spec.common, &mut spec.program);
    let made = (Spec::Container(spec), create.run.then_some(Run::Running));
    make(session, (host, create.unit.unit), made, create.replace, create.wait, None).await
}

/// Creates another container with the same contents.
///
/// # Errors
/// If the name is in use, if a value of its environment is missing, if it is refused, or if it does not become as
/// desired in time.
pub(crate) async fn clone(clone: CloneContainer, session: &CliSession) -> Result<(), Failure> {
    let from = one(session, &clone.from, clone.host).await?;
    let host = clone.to.host.clone().unwrap_or_else(|| from.host.to_string());
    let all = named(session, [&clone.to.unit].into_iter()).await?;
    let on = target::host_of(&all, &host)?;
    if let Some(there) = all.iter().find(|unit| unit.unit == clone.to.unit && Some(unit.host) == on) {
        return Err(Failure::new(
            FailureKind::Refused,
            format!("there is a unit {} on {} already", there.unit, there.hostname),
        )
        .hint("give the other one a name of its own"));
    }
    let spec = cloned(&from, clone.environment.variables()?)?;
    let copied_from = HostUnit { host: from.host, unit: from.unit.clone() };
    let made = (spec, clone.run.then_some(Run::Running));
    make(session, (host, clone.to.unit), made, false, clone.wait, Some(copied_from)).await
}

/// The spec of the new container.
fn cloned(from: &Unit, given: BTreeMap<String, String>) -> Result<Spec, Failure> {
    let mut spec = Spec::clone(&from.desired.spec);
    let Spec::Container(container) = &mut spec else {
        let kind = spec.kind();
        return Err(Failure::new(FailureKind::Usage, format!("{} is a {kind}, not a container", from.unit))
            .hint("`muster unit export` writes a document that can be applied under another name"));
    };
    if let Some(name) = container.image.existing() {
        return Err(Failure::new(
            FailureKind::Usage,
            format!("{} is the container {name}, which was adopted", from.unit),
        )
        .hint("only its runtime knows its settings"));
    }
    container.common.restart_epoch = 0;
    container.program.env.extend(given);
    let missing: Vec<&str> = masked(&container.program.env).collect();
    if missing.is_empty() {
        return Ok(spec);
    }
    let names = missing.join(", ");
    Err(Failure::new(FailureKind::Usage, format!("the environment of {} is never shown: {names}", from.unit)).hint(
        format!(
            "give each, such as {}=…, in a file to --env-file, or to --env",
            missing.first().copied().unwrap_or_default()
        ),
    ))
}

fn masked(env: &BTreeMap<String, String>) -> impl Iterator<Item = &str> {
    env.iter().filter(|(_, value)| *value == MASK).map(|(name, _)| name.as_str())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser, Debug)]
    struct Line {
        #[command(flatten)]
        create: CreateContainer,
    }

    fn parse(line: &str) -> Result<CreateContainer, clap::Error> {
        Line::try_parse_from(["create"].into_iter().chain(line.split_whitespace())).map(|line| line.create)
    }

    #[test]
    fn container_options_make_a_spec() {
        let made = parse(
            "a/b --image x --mount /a:/b:ro --mount /c:/d --port http=80 --network none --memory 5M --rlimit nofile=9 --live exec:true --start-timeout 5s -- sh -c true",
        )
        .unwrap();
        assert_eq!(made.args, ["sh", "-c", "true"]);
        assert_eq!(made.network, Network::None);
        assert_eq!(made.limited.limits().memory_bytes, Some(5 << 20));
        assert_eq!(made.ports.len(), 1);
        assert!(made.probes.clone().into_field().live.is_some());
        assert_eq!(millis(made.start_timeout), 5_000);
        let read_only: Vec<bool> = made.mounts.iter().map(|mount| mount.read_only).collect();
        assert_eq!(read_only, [true, false]);
        for wrong in [
            "a/b",
            "a/b --image x --rootfs y",
            "a/b --image x --mount /a",
            "a/b --image x --port http",
            "a/b --image x --port http=0x5",
            "a/b --image x --network lan",
            "a/b --image x --runtime qemu",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
