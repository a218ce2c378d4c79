//! Launches the command of a probe for a yuno as the yuno itself was launched, by the launch that its shim recorded.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use muster_rules::{
    plan::{ProbeRequest, Slot},
    process::NOTIFY_VARIABLES,
};
use muster_shim::{Launch, SOCKET_VARIABLE, cgroup::Cgroup, files};
use muster_topics::{diagnostic::Diagnostic, name::UnitName};

use super::Yunos;
use crate::{execute::program_path::find_program, unit::probe};

impl Yunos {
    /// Runs a probe once; the error is why it failed.
    pub(super) async fn try_probe(&self, unit: &UnitName, probing: &ProbeRequest) -> Result<(), Diagnostic> {
        let place = self.place(unit, probing.slot);
        let (run, wanted) = (place.run(), probing.clone());
        let launch = move |argv: &[String]| {
            let own = files::read_launch(&run).map_err(|error| format!("what it was started with: {error}"))?;
            launch(own, &wanted, argv)
        };
        probe::attempt(&self.shims, &place.probes(), probing, launch).await
    }

    /// Ends processes of cancelled probes.
    pub(super) async fn end_probes(&self, unit: &UnitName, slot: Slot) {
        probe::end_all(&self.shims, &self.place(unit, slot).probes(), unit).await;
    }
}

/// Returns the launch of a command like the yuno's own, with another program.
fn launch(own: Launch, probing: &ProbeRequest, argv: &[String]) -> Result<Launch, Diagnostic> {
    let config = own.env.iter().find(|(name, _)| name == "MUSTER_CONFIG").map_or("", |(_, path)| path);
    let fill = |word: &String| probing.wiring.fill(word, Some(config));
    let mut argv: Vec<String> = argv.iter().map(fill).collect();
    let program = argv.first_mut().ok_or("no program to run")?;
    *program = find_program(program, Path::new(&own.cwd)).map_err(|refusal| refusal.diagnostic)?;
    // With these variables the command would be mistaken for the yuno.
    let of_channel = |name: &str| NOTIFY_VARIABLES.contains(&name) || name == SOCKET_VARIABLE;
    let env = own.env.into_iter().filter(|(name, _)| !of_channel(name)).collect();
    Ok(Launch { argv, env, cgroup: within(&own.cgroup, &format!("probe-{}", probing.which)), ..own })
}

/// Returns a cgroup within the yuno's: under its limits, frozen and killed with it, and yet separately killable. None
/// if it cannot be created.
fn within(own: &Cgroup, name: &str) -> Cgroup {
    let make = |folder: &Option<PathBuf>| {
        let inner = folder.as_ref()?.join(name);
        match fs::create_dir(&inner) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => None,
            _ => Some(inner),
        }
    };
    Cgroup {
        unified: make(&own.unified),
        memory: make(&own.memory),
        cpu: make(&own.cpu),
        pids: make(&own.pids),
        freezer: make(&own.freezer),
    }
}
