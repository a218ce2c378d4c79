//! The host's own policy: when, and unless what, it begins a version that it asks for.

use std::{io, path::PathBuf, process::Stdio, time::Duration};

use jiff::{Timestamp, tz::TimeZone};
use muster_base::clock;
use muster_rules::{
    desired::body::shortened,
    rollout::window::{self, Window, WindowState, WindowZone},
};
use muster_topics::{Millis, desired::DeploymentVersion, diagnostic::Diagnostic};
use nix::{sys::signal, unistd::Pid};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::{io::AsyncReadExt, process::Command, time::timeout};

use crate::execute::program_path::SEARCH_PATH;

/// How much of a command's output is read: its first line is shown.
const SAID_MAX_BYTES: u64 = 16 * 1024;

/// When this host begins a version of a deployment that is rolled out. The host prepares a version first, and asks the console
/// once all of this allows it; what does not is shown, and examined again each minute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdmissionPolicy {
    /// When it may begin, such as `Mon-Fri 02:00-05:00 host`; always, if there is none. The zone is `host`, that of this host.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<String>,
    /// A file whose presence keeps it from beginning, such as one that a cash register writes while it is in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unless_file: Option<PathBuf>,
    /// A program with its arguments that allows it by ending with 0, and forbids it otherwise, with its first line of output
    /// as the reason. It runs as the agent's user, with `MUSTER_DEPLOYMENT` and `MUSTER_VERSION`, and is killed after 30 s, which
    /// forbids it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
}

/// What the policy is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyMoment {
    /// To ask the console: a window has to stay open for as long as the question counts.
    Ask,
    /// To begin, now.
    Begin,
}

/// The longest time of a command: it delays the host's question, and each minute there is another one.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

impl AdmissionPolicy {
    /// Returns everything that types cannot express and that cannot work, each with its key.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let of_window = |text: &String| match text.parse::<Window>() {
            Err(problem) => Some(format!("`admission.windows`: {problem}")),
            Ok(window) if *window.zone() != WindowZone::Host => {
                Some(format!("`admission.windows`: {text:?}: the zone of a host's own windows is `host`"))
            }
            Ok(_) => None,
        };
        let mut problems: Vec<_> = self.windows.iter().filter_map(of_window).collect();
        if self.command.first().is_some_and(String::is_empty) {
            problems.push("`admission.command` names no program".to_owned());
        }
        problems
    }

    /// Returns why the host may not ask for a version, or begin with it, as far as that is known at once.
    #[must_use]
    pub fn forbids(&self, version: &DeploymentVersion, moment: PolicyMoment) -> Option<String> {
        let zone = TimeZone::try_system();
        self.is_closed(version, (moment, clock::now_ms()), zone.as_ref().ok()).or_else(|| self.has_file())
    }

    /// Returns why windows in the host's own zone keep it from beginning: its own, or the version's.
    fn is_closed(
        &self,
        version: &DeploymentVersion,
        (moment, now_ms): (PolicyMoment, Millis),
        zone: Option<&TimeZone>,
    ) -> Option<String> {
        let own: Vec<Window> = self.windows.iter().filter_map(|text| text.parse().ok()).collect();
        let of_version = window::of_host(&version.rollout);
        for (windows, whose) in [(own, "`admission.windows`"), (of_version, "`windows` of the rollout")] {
            if windows.is_empty() {
                continue;
            }
            let is_open =
                |zone| windows.iter().any(|window| matches!(window.state(now_ms, zone), WindowState::Open { .. }));
            if moment == PolicyMoment::Begin && zone.is_some_and(is_open) {
                continue;
            }
            let Some(zone) = zone else { return Some(format!("this host's time zone is not known ({whose})")) };
            if let WindowState::Closed { opens_ms } = window::host_state(&windows, now_ms, zone) {
                let opens = opens_ms.and_then(|opens_ms| Timestamp::from_millisecond(opens_ms).ok());
                let when = opens.map(|opens| zone.to_datetime(opens).strftime("%a %Y-%m-%d %H:%M").to_string());
                let when = when.map_or("no window opens".to_owned(), |when| format!("the next window opens at {when}"));
                return Some(format!("{when} ({whose})"));
            }
        }
        None
    }

    fn has_file(&self) -> Option<String> {
        let file = self.unless_file.as_ref()?;
        match file.symlink_metadata() {
            Ok(_) => Some(format!("{} exists (`admission.unless_file`)", file.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // Whether it is there is unknown.
            Err(error) => Some(format!("cannot read {}: {error} (`admission.unless_file`)", file.display())),
        }
    }

    /// Asks everything; the error is why the host may not begin at present.
    ///
    /// # Errors
    /// If something forbids it.
    pub async fn ask(&self, version: &DeploymentVersion) -> Result<(), Diagnostic> {
        match self.forbids(version, PolicyMoment::Ask) {
            Some(why) => Err(why.into()),
            None => self.run(version, COMMAND_TIMEOUT).await,
        }
    }

    /// Runs the command for at most `limit`.
    async fn run(&self, version: &DeploymentVersion, limit: Duration) -> Result<(), Diagnostic> {
        self.ran(version, limit).await.map_err(|why| shortened(format!("{why} (`admission.command`)")))
    }

    async fn ran(&self, version: &DeploymentVersion, limit: Duration) -> Result<(), String> {
        let Some((program, args)) = self.command.split_first() else { return Ok(()) };
        let failed = |error: io::Error| format!("cannot run {program}: {error}");
        let mut child = Command::new(program)
            .args(args)
            .env_clear()
            .env("PATH", SEARCH_PATH)
            .env("MUSTER_DEPLOYMENT", version.deployment.as_str())
            .env("MUSTER_VERSION", version.number.to_string())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        let stdout = child.stdout.take();
        let ended = async {
            let mut said = Vec::new();
            if let Some(stdout) = stdout {
                stdout.take(SAID_MAX_BYTES).read_to_end(&mut said).await?;
            }
            Ok::<_, io::Error>((child.wait().await?, said))
        };
        match timeout(limit, ended).await {
            Ok(Ok((status, _))) if status.success() => Ok(()),
            Ok(Ok((status, said))) => {
                let said = String::from_utf8_lossy(&said);
                let line = said.lines().find(|line| !line.trim().is_empty()).map(str::trim);
                Err(line.map_or_else(|| format!("{program} refuses: {status}"), str::to_owned))
            }
            Ok(Err(error)) => Err(failed(error)),
            Err(_) => {
                // It was not waited for, so its number is its own yet.
                if let Some(group) = group {
                    let _ = signal::killpg(group, signal::Signal::SIGKILL);
                }
                Err(format!("{program} did not end within {} s and was killed", limit.as_secs()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version() -> DeploymentVersion {
        let version = r#"{"deployment": "shop/till", "number": 3, "target": {"select": "host=*"}, "units": []}"#;
        serde_json::from_str(version).unwrap()
    }

    fn script(script: &str) -> AdmissionPolicy {
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        AdmissionPolicy { command, ..AdmissionPolicy::default() }
    }

    #[tokio::test]
    async fn command_allows_by_its_status_and_forbids_with_its_first_line() {
        let version = version();
        AdmissionPolicy::default().ask(&version).await.unwrap();
        script("test $MUSTER_DEPLOYMENT.$MUSTER_VERSION = shop/till.3").ask(&version).await.unwrap();
        for (wanted, words) in [
            ("echo; echo ' a customer pays '; exit 3", "a customer pays"),
            ("exit 3", "exit status: 3"),
            ("sleep 100 & sleep 100", "did not end within 1 s"),
            ("yes no; exit 1", "no"),
        ] {
            let why = script(wanted).run(&version, Duration::from_secs(1)).await.unwrap_err();
            assert!(why.cause.contains(words) && why.cause.contains("`admission.command`"), "{why}");
        }
        let missing = AdmissionPolicy { command: vec!["/no/such".to_owned()], ..AdmissionPolicy::default() };
        assert!(missing.ask(&version).await.unwrap_err().cause.contains("cannot run"));
    }

    #[tokio::test]
    async fn file_forbids_while_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("in-use");
        let policy = AdmissionPolicy { unless_file: Some(file.clone()), ..AdmissionPolicy::default() };
        assert_eq!(policy.forbids(&version(), PolicyMoment::Ask), None);
        std::fs::write(&file, "").unwrap();
        assert!(policy.ask(&version()).await.unwrap_err().cause.contains("in-use"));
        // What is unknown is no permission.
        let policy = AdmissionPolicy { unless_file: Some(file.join("below")), ..AdmissionPolicy::default() };
        assert!(policy.forbids(&version(), PolicyMoment::Begin).unwrap().contains("cannot read"));
    }

    #[test]
    fn windows_are_in_the_zone_of_the_host() {
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        // 2026-03-02 is a Monday.
        let at = |time: &str| format!("2026-03-02T{time}:00Z").parse::<Timestamp>().unwrap().as_millisecond();
        let mut version = version();
        let policy = AdmissionPolicy { windows: vec!["Mon 02:00-05:00 host".to_owned()], ..AdmissionPolicy::default() };
        let closed = |policy: &AdmissionPolicy, version: &DeploymentVersion, time: &str| {
            policy.is_closed(version, (PolicyMoment::Ask, at(time)), Some(&zone))
        };
        assert_eq!(closed(&policy, &version, "00:30"), None);
        let why = closed(&policy, &version, "04:00").unwrap();
        // A question has to count for a while; what was granted begins as long as the window is open.
        let begins = policy.is_closed(&version, (PolicyMoment::Begin, at("02:58")), Some(&zone));
        assert!(closed(&policy, &version, "02:58").is_some() && begins.is_none(), "{begins:?}");
        assert!(why.contains("Mon 2026-03-09 02:00") && why.contains("`admission.windows`"), "{why}");
        // Those of the version count, too; those of places are the console's matter.
        let windows = serde_json::json!(["12:00-13:00 UTC", "Tue 02:00-05:00 host"]);
        version.rollout.insert("windows".to_owned(), windows);
        assert!(closed(&policy, &version, "00:30").unwrap().contains("of the rollout"));
        let none = AdmissionPolicy::default();
        assert!(none.is_closed(&version, (PolicyMoment::Begin, at("00:30")), None).unwrap().contains("time zone"));
        version.rollout.clear();
        assert_eq!(none.is_closed(&version, (PolicyMoment::Ask, at("00:30")), None), None);
    }

    #[test]
    fn wrong_values_are_named() {
        let check = |policy: AdmissionPolicy, key: &str| {
            let problems = policy.problems();
            assert!(problems.len() == 1 && problems[0].contains(key), "{problems:?}");
        };
        assert!(AdmissionPolicy::default().problems().is_empty());
        for window in ["tomorrow", "02:00-05:00 Europe/Berlin"] {
            check(
                AdmissionPolicy { windows: vec![window.to_owned()], ..AdmissionPolicy::default() },
                "admission.windows",
            );
        }
        check(AdmissionPolicy { command: vec![String::new()], ..AdmissionPolicy::default() }, "admission.command");
    }
}
