//! Launches the command of a probe inside a container, as `exec` does (`topics/decisions/0036`), with the user and
//! the limits of the container's first process, and the variables that its spec and the agent give it.
//!
//! The runtime is not asked: the process that came up is identified by its start time, and a healthy container must not be
//! stopped because its runtime cannot be reached.

use muster_rules::plan::ProbeRequest;
use muster_shim::Launch;
use muster_topics::{
    command::Exec, container::ContainerSpec, diagnostic::Diagnostic, name::UnitName, probe::Check, process::Limits,
};
use nix::unistd;

use super::{Containers, container, environment};
use crate::{
    execute::inside::RunningContainer,
    unit::{first_process::FirstProcess, probe},
};

impl Containers {
    /// Runs a probe once; the error is why it failed.
    pub(super) async fn try_probe(&self, unit: &UnitName, probing: &ProbeRequest) -> Result<(), Diagnostic> {
        let (of_unit, wanted) = (unit.clone(), probing.clone());
        let launch = move |argv: &[String]| {
            let spec = container(&wanted.desired.spec).map_err(|failure| failure.error)?;
            launch(&of_unit, spec, &wanted, argv)
        };
        probe::attempt(&self.shims, &self.place(unit).probes(), probing, launch).await
    }

    /// Ends processes of cancelled probes.
    pub(super) async fn end_probes(&self, unit: &UnitName) {
        probe::end_all(&self.shims, &self.place(unit).probes(), unit).await;
    }
}

/// Returns which feature of a spec this agent cannot provide in any container, if any.
pub(super) fn cannot(spec: &ContainerSpec) -> Option<Diagnostic> {
    let runs_inside = spec.program.probes.iter().find(|(_, probe)| matches!(probe.check, Check::Exec(_)));
    let (which, _) = runs_inside.filter(|_| !unistd::geteuid().is_root())?;
    Some(
        Diagnostic::new(format_args!("probes.{which}.exec: only an agent that runs as root can enter a container"))
            .with_hint("tcp or http"),
    )
}

fn launch(
    unit: &UnitName,
    spec: &ContainerSpec,
    probing: &ProbeRequest,
    argv: &[String],
) -> Result<Launch, Diagnostic> {
    let first = FirstProcess { pid: probing.process.pid, start_ticks: probing.process.start_ticks };
    let exec = Exec {
        cwd: spec.program.cwd.clone(),
        env: environment(unit, spec, &probing.wiring),
        ..Exec::new(argv.iter().map(|word| probing.wiring.fill(word, None)).collect(), 0)
    };
    let prepare = || {
        let inside = RunningContainer::open(unit, first)?;
        let mut launch = inside.launch(&exec)?;
        inside.check(&launch)?;
        // Names of units have no dots, so no daemon in the container has this cgroup.
        inside.place(&mut launch, &format!("probe.{}", probing.which), &Limits::default())?;
        Ok::<_, muster_rules::CommandRefusal>(launch)
    };
    prepare().map_err(|refusal| refusal.diagnostic)
}
