//! A yuno in a container: a command that stays there.

use muster_rules::plan::Failure;
use muster_shim::{Launch, OutputMode, RestartLimits, RestartOn};
use muster_topics::{command::Exec, name::UnitName, unit::YunoSpec};

use super::signal_number::signal_number;
use crate::{
    execute::inside::RunningContainer,
    unit::{
        container::Containers,
        failure::{blocking, never},
    },
};

/// Returns how it is launched inside a container: as a command would be, permanently, with a log, and named as its
/// unit. `None` if it runs on the host.
pub(super) async fn launch(
    containers: &Containers,
    unit: &UnitName,
    spec: &YunoSpec,
) -> Result<Option<Launch>, Failure> {
    let Some(container) = spec.container.clone() else { return Ok(None) };
    let first = containers.first_process(&container).await?;
    let (unit, spec) = (unit.clone(), spec.clone());
    let launch = move || {
        let refused = |refusal: muster_rules::CommandRefusal| never(refusal.diagnostic);
        let exec = Exec {
            user: spec.program.user.clone(),
            cwd: spec.program.cwd.clone(),
            env: spec.program.env.clone(),
            ..Exec::new(spec.program.args.clone(), 0)
        };
        let container = RunningContainer::open(&container, first).map_err(refused)?;
        let mut launch = container.launch(&exec).map_err(refused)?;
        container.place(&mut launch, unit.name().as_str(), &spec.program.limits).map_err(refused)?;
        let own = [("MUSTER_UNIT", unit.to_string()), ("MUSTER_REALM", unit.realm().to_string())];
        launch.env.extend(own.map(|(name, value)| (name.to_owned(), value)));
        let log = &spec.log;
        launch.output = OutputMode::Log { max_bytes: log.max_bytes, keep: log.keep, max_age_ms: log.max_age_ms };
        // Its container may have been replaced by then.
        launch.restart = RestartLimits { on: RestartOn::Never, budget: 0, reset_after_ms: 0 };
        launch.timeout_ms = None;
        launch.stop_signal = signal_number(spec.stop_signal());
        launch.grace_ms = spec.program.grace_ms;
        Ok(launch)
    };
    blocking(launch).await.map(Some)
}
