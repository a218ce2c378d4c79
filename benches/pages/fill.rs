//! What is in the stores: as hosts would have said it, stored by the console's own functions.

use std::{path::Path, sync::Arc};

use anyhow::Result;
use muster_api::CommandState;
use muster_base::clock::now_ms;
use muster_console::{
    authority::IssuedPem,
    store::{Store, alert, command, deployment, host},
};
use muster_series::{SeriesColumn, SeriesStore};
use muster_topics::{
    Millis, V1,
    asker::Asker,
    command::{Command, Exec, Target, Verb},
    desired::DeploymentVersion,
    envelope::Signer,
    name::{CommandId, Digest, HostId, Name},
    sealed::SealingKey,
    slot::Slot,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Number of finished commands to all hosts.
const OVER: usize = 12;
/// One host in this many has a problem: a failed unit, an alert, a missing answer.
const ODD: usize = 50;
/// The deployment that the first unit of each host belongs to.
pub(crate) const DEPLOYMENT: &str = "default/tills";
/// One host in this many has its first version, the others the second.
const BEHIND: usize = 9;
/// Duration of the measurements of one host and of the fleet; other hosts have a quarter of an hour.
const DAY_MS: Millis = 24 * 3_600_000;
const RECENT_MS: Millis = 15 * 60_000;
const STEP_MS: Millis = 10_000;
/// Number of series that are written together.
const TOGETHER: usize = 2_000;

/// The ids of what was created.
pub(crate) struct Filled {
    /// A host with everything.
    pub(crate) host: HostId,
    /// One of its units.
    pub(crate) unit: &'static str,
    /// A command to all hosts with every outcome.
    pub(crate) done: CommandId,
    /// A command to all hosts that some have not answered.
    pub(crate) open: CommandId,
}

fn of<T: DeserializeOwned>(value: Value) -> Result<T> {
    Ok(serde_json::from_value(value)?)
}

/// Fills the stores in a console's folder.
pub(crate) fn fill(folder: &Path, count: usize) -> Result<Filled> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = Store::open(&folder.join("console.db")).await?;
        let hosts: Vec<HostId> = (0..count).map(|_| HostId::random()).collect();
        deployed(&store).await?;
        members(&store, &hosts).await?;
        alerts(&store, &hosts).await?;
        let mut done = None;
        for _ in 0..OVER {
            done = Some(ordered(&store, &hosts, count).await?);
        }
        let open = ordered(&store, &hosts, count / 2).await?;
        store.close().await;
        measured(&folder.join("series.db"), &hosts).await?;
        let (host, done) = (hosts[0], done.unwrap_or(open));
        Ok(Filled { host, unit: "default/till-0", done, open })
    })
}

fn facts() -> Value {
    json!({
        "os": "Debian GNU/Linux 12 (bookworm)", "kernel": "6.1.0-18-amd64", "arch": "x86_64", "cpus": 4, "cpu_model": "Intel(R) Celeron(R) J6412 @ 2.00GHz",
        "memory_bytes": 8_589_934_592_u64, "boot_id": "2c6c3e1a-7f1e-4f6c-9d4e-0c3c2f4f3e11", "boot_ms": 1_700_000_000_000_u64,
    })
}

fn state(name: &str, number: usize) -> Value {
    let labels: Value =
        (0..12).map(|label| (format!("label-{label}"), json!(format!("value-{}", number % (label + 2))))).collect();
    let interfaces: Value = ["eth0", "wlan0"]
        .map(|name| {
            (name.to_owned(), json!({"mac": "02:00:00:00:00:01", "addresses": ["192.0.2.7/24", "2001:db8::7/64"]}))
        })
        .into_iter()
        .collect();
    let units: Value = (0..3)
        .map(|unit| {
            let phase = if odd(number, unit) { "failed" } else { "running" };
            let unit = format!("default/till-{unit}");
            (unit, json!({"generation": 1, "run": "running", "phase": phase}))
        })
        .collect();
    json!({
        "hostname": name, "agent_version": "0.1.0", "command_keys": {"ids": [], "authorities": []},
        "desired": {"mark": {"epoch": 0, "generation": 0}}, "facts": facts(), "interfaces": interfaces, "labels": labels,
        "realms": ["default"], "units": units, "desired": {"mark": {"epoch": 0, "generation": 0}},
    })
}

/// Whether a unit of a host has a problem.
fn odd(number: usize, unit: usize) -> bool {
    number % ODD == 1 && unit == 1
}

fn name(number: usize) -> String {
    format!("shop-{number:05}")
}

/// A deployment of all hosts in two versions; the console gives it to them when it starts.
async fn deployed(store: &Store) -> Result<()> {
    let now = now_ms();
    let (mut db, mut parent) = (store.begin().await?, None);
    for number in [1, 2] {
        let artifact = json!({"sha256": Digest::of(b"artifact"), "size_bytes": 1, "role": "till", "version": format!("1.2.{number}")});
        let document = json!({
            "deployment": DEPLOYMENT, "number": number, "parent": parent, "target": {"select": "host=*"},
            "units": [{"unit": "default/till-0", "spec": {"kind": "yuno", "artifact": artifact}, "run": "running"}],
        });
        let content: DeploymentVersion = of(document.clone())?;
        let digest = content.digest()?;
        let info = of(json!({
            "number": number, "digest": digest, "parent": parent, "operator": "admin", "applied_ms": now,
        }))?;
        parent = Some(digest);
        deployment::set_present(&mut db, &content.deployment, number, now).await?;
        let row = deployment::VersionRow { info, content: Arc::new(content), document, is_damaged: false };
        deployment::add_version(&mut db, &row).await?;
    }
    Ok(db.commit().await?)
}

/// Hosts that have joined, are online, and have reported their complete state and units.
async fn members(store: &Store, hosts: &[HostId]) -> Result<()> {
    let now = now_ms();
    let mut db = store.begin().await?;
    let (mut presences, mut states) = (Vec::new(), Vec::new());
    for (number, id) in hosts.iter().enumerate() {
        let sealing_key = SealingKey::from_bytes([7; 32]);
        let joining = host::JoiningHost { host: *id, hostname: name(number), facts: of(facts())?, sealing_key };
        let key = Digest::of(id.to_string().as_bytes());
        let certificate =
            IssuedPem { pem: String::new(), serial: format!("{number:040x}"), key, expires_ms: now + 90 * DAY_MS };
        host::join(&mut db, &joining, &certificate, now).await?;
        // Every seventh host is offline.
        let word = if number % 7 == 6 { "offline" } else { "online" };
        presences.push((
            *id,
            of(json!({
                "v": 1, "state": word, "instance": uuid::Uuid::nil(), "epoch": 1, "session": 1, "protocol": 1, "agent_version": "0.1.0",
                "capabilities": ["exec"], "since_ms": now,
            }))?,
        ));
        let state = state(&name(number), number);
        let held = host::StoredState { epoch: 1, lives: vec![1], seq: 2, state: state.clone(), base: Some((1, state)) };
        states.push(host::NewState { host: *id, held, hostname: name(number) });
    }
    host::set_presences(&mut db, &presences, now).await?;
    host::set_held(&mut db, &states, now).await?;
    let digest = Digest::of(b"artifact");
    for (number, id) in hosts.iter().enumerate() {
        for unit in 0..3 {
            let phase = if odd(number, unit) { "failed" } else { "running" };
            let version = if number % BEHIND == 0 { 1 } else { 2 };
            let owner = (unit == 0).then(|| json!({"deployment": DEPLOYMENT, "version": version}));
            let mut report = json!({
                "v": 1, "epoch": 1, "seq": unit + 1, "at_ms": now, "unit": format!("default/till-{unit}"),
                "desired": {
                    "generation": 1, "revision": digest, "run": "running",
                    "spec": {"kind": "yuno", "artifact": {"sha256": digest, "size_bytes": 1, "role": "till", "version": "1.2.3"}},
                },
                "observed": {"generation": 1, "phase": phase, "since_ms": now, "attempts": 0},
            });
            if let (Some(owner), Some(report)) = (owner, report.as_object_mut()) {
                report.insert("owner".to_owned(), owner);
            }
            host::set_unit(&mut db, *id, &of(report)?, now).await?;
        }
    }
    Ok(db.commit().await?)
}

/// Active alerts on every fiftieth host, with ten past ones each.
async fn alerts(store: &Store, hosts: &[HostId]) -> Result<()> {
    let now = now_ms();
    let mut db = store.begin().await?;
    for id in hosts.iter().step_by(ODD) {
        for before in (0..=10).rev() {
            let since_ms = now - before * 3_600_000 - 60_000;
            let state = if before == 0 { "raised" } else { "cleared" };
            let alert = json!({
                "v": 1, "epoch": 1, "seq": 11 - before, "id": "disk-full-root", "rule": "disk-full", "severity": "warning", "mount": "/",
                "metric": "disk_used", "value": 0.93, "threshold": 0.9, "clear": 0.85, "since_ms": since_ms, "at_ms": since_ms + 30_000,
                "state": state, "message": "93 % of / are used (more than 90 %)",
            });
            alert::put(&mut db, *id, &of(alert)?, now).await?;
        }
    }
    Ok(db.commit().await?)
}

/// A command to all hosts with this many answers, almost all successful.
async fn ordered(store: &Store, hosts: &[HostId], answered: usize) -> Result<CommandId> {
    let now = now_ms();
    let exec = Exec::new(["sh", "-c", "true"].map(str::to_owned).to_vec(), 60_000);
    let order = Command {
        v: V1,
        id: CommandId::new(),
        target: Target::All,
        issued_ms: now,
        expires_ms: now + 3_600_000,
        asked_by: Asker::admin(Name::admin()),
        realms: Vec::new(),
        verb: Verb::Exec(exec),
        sealed: None,
    };
    let signed = Signer::from_pkcs8(&Signer::generate()?)?.sign(Slot::default(), &order)?;
    let mut db = store.begin().await?;
    command::add(&mut db, &order, &signed, hosts).await?;
    let mut outcomes = Vec::new();
    for (number, host) in hosts.iter().enumerate().take(answered) {
        let code = i32::from(number % ODD == 2);
        let outcome = json!({
            "status": "exited", "exit": {"code": code}, "started_ms": now + 3, "finished_ms": now + 5 + number as i64 % 40,
            "stdout": {"rest": {"text": format!("what {} has to say\n", name(number))}},
        });
        outcomes.push(command::SettledOutcome { command: order.id, host: *host, outcome: of(outcome)? });
    }
    command::settle(&mut db, &outcomes, now).await?;
    for host in hosts.iter().skip(answered).step_by(3) {
        command::advance(&mut db, order.id, *host, CommandState::Running).await?;
    }
    db.commit().await?;
    Ok(order.id)
}

/// Measurements of the hosts.
async fn measured(path: &Path, hosts: &[HostId]) -> Result<()> {
    let store = SeriesStore::open(path).await?;
    let now = now_ms() / STEP_MS * STEP_MS;
    let column = |name: &str, labels: &[(&str, &str)], since_ms: Millis, number: usize| SeriesColumn {
        name: name.to_owned(),
        labels: labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        samples: (0..since_ms / STEP_MS)
            .map(|back| (now - back * STEP_MS, ((back * 37 + number as i64 * 11) % 100) as f64 / 100.0))
            .collect(),
    };
    let mut columns = Vec::new();
    for (number, id) in hosts.iter().enumerate() {
        let (id, hostname) = (id.to_string(), name(number));
        let since_ms = if number == 0 { DAY_MS } else { RECENT_MS };
        let labels = [("host", id.as_str()), ("hostname", hostname.as_str())];
        for name in [
            "muster_host_cpu_busy_ratio",
            "muster_host_cpu_user_ratio",
            "muster_host_cpu_system_ratio",
            "muster_host_load_1m",
            "muster_host_memory_used_bytes",
            "muster_host_memory_total_bytes",
        ] {
            columns.push(column(name, &labels, since_ms, number));
        }
        for mount in ["/", "/var"] {
            let labels = [labels[0], labels[1], ("mount", mount)];
            for name in ["muster_host_disk_used_bytes", "muster_host_disk_total_bytes"] {
                columns.push(column(name, &labels, since_ms, number));
            }
        }
        for interface in ["eth0", "wlan0"] {
            let labels = [labels[0], labels[1], ("interface", interface)];
            for name in ["muster_host_network_receive_bytes_total", "muster_host_network_transmit_bytes_total"] {
                columns.push(column(name, &labels, since_ms, number));
            }
        }
        if number == 0 {
            for unit in 0..3 {
                let unit = format!("till-{unit}");
                let labels = [labels[0], labels[1], ("realm", "default"), ("unit", unit.as_str())];
                columns.push(column("muster_unit_memory_resident_bytes", &labels, since_ms, number));
            }
            let console = [("instance", "console")];
            for name in [
                "muster_fleet_cpu_busy_ratio",
                "muster_fleet_hosts_measuring",
                "muster_fleet_memory_used_bytes",
                "muster_fleet_memory_total_bytes",
            ] {
                columns.push(column(name, &console, since_ms, number));
            }
        }
        if columns.len() > TOGETHER {
            store.append_columns(std::mem::take(&mut columns)).await?;
        }
    }
    store.append_columns(columns).await?;
    store.stop().await;
    Ok(())
}
