//! A yuno in a container: a command that is to stay there.

use muster_shim::{Launch, Output, Restart, RestartOn};
use muster_topics::{command::Exec, name::UnitName, unit::YunoSpec};

use super::launch::signal_number;
use crate::{
    agent::{
        execute::Container,
        unit::{
            container::Containers,
            failure::{blocking, never},
        },
    },
    rules::plan::Failure,
};

/// How it is launched: as the command would be, for good, into a log, and with the name that it has as a unit. Nothing if
/// it runs on the host.
pub(super) async fn launch(
    containers: &Containers,
    unit: &UnitName,
    spec: &YunoSpec,
) -> Result<Option<Launch>, Failure> {
    let Some(container) = spec.container.clone() else { return Ok(None) };
    let first = containers.first_process(&container).await?;
    let (unit, spec) = (unit.clone(), spec.clone());
    let launch = move || {
        let refused = |refusal: crate::rules::Refusal| never(refusal.message);
        let exec = Exec {
            user: spec.user.clone(),
            cwd: spec.cwd.clone(),
            env: spec.env.clone(),
            ..Exec::new(spec.args.clone(), 0)
        };
        let container = Container::open(&container, first).map_err(refused)?;
        let mut launch = container.launch(&exec).map_err(refused)?;
        container.place(&mut launch, unit.name().as_str(), &spec.limits).map_err(refused)?;
        let own = [("MUSTER_UNIT", unit.to_string()), ("MUSTER_REALM", unit.realm().to_string())];
        launch.env.extend(own.map(|(name, value)| (name.to_owned(), value)));
        let log = &spec.log;
        launch.output = Output::Log { max_bytes: log.max_bytes, keep: log.keep, max_age_ms: log.max_age_ms };
        // By then its container may be another one.
        launch.restart = Restart { on: RestartOn::Never, budget: 0, reset_after_ms: 0 };
        launch.timeout_ms = None;
        launch.stop_signal = signal_number(spec.stop_signal());
        launch.grace_ms = spec.grace_ms;
        Ok(launch)
    };
    blocking(launch).await.map(Some)
}
