//! Hosts, and the fleet at a glance.

use super::*;

/// One host; there are four variants.
pub(in crate::web) fn host(hostname: &str, index: usize) -> Host {
    let presence = match index % 4 {
        3 => HostConnection::Offline,
        2 => HostConnection::Stopped,
        1 => HostConnection::Unknown,
        _ => HostConnection::Online,
    };
    let facts = Facts {
        os: if hostname == HOSTILE { HOSTILE } else { "Debian GNU/Linux 12" }.to_owned(),
        kernel: "6.1.0-18-amd64".to_owned(),
        arch: "x86_64".to_owned(),
        cpus: 4,
        cpu_model: "Intel(R) Celeron(R) J4125 CPU @ 2.00GHz".to_owned(),
        memory_bytes: 8_243_429_376,
        boot_id: "boot".to_owned(),
        boot_ms: ago(380_000),
    };
    let interface = Interface {
        mac: "02:00:00:00:00:01".to_owned(),
        addresses: vec!["192.0.2.7/24".to_owned(), "2001:db8::7/64".to_owned()],
    };
    let summary = |phase, hold| UnitSummary { generation: 3, run: Run::Running, phase, hold, rolled_back: false };
    let hold = Hold::new(HoldReason::Broken, ago(700));
    let units =
        BTreeMap::from([(name(0), summary(Phase::Running, None)), (name(1), summary(Phase::Failed, Some(hold)))]);
    let others = ContainerSummary {
        runtime: Runtime::Podman,
        state: ContainerState::Running,
        unit: None,
        image: hostname.to_owned(),
        limits: Limits::default(),
    };
    let ours = ContainerSummary { unit: Some(name(1)), ..others.clone() };
    let state = HostState {
        hostname: hostname.to_owned(),
        agent_version: "0.1.0".to_owned(),
        facts,
        interfaces: BTreeMap::from([("eth0".to_owned(), interface)]),
        labels: BTreeMap::from([("site".parse().unwrap(), hostname.to_owned())]),
        realms: vec!["default".parse().unwrap(), "shop".parse().unwrap()],
        units: if index % 4 == 1 { units } else { BTreeMap::new() },
        alerts: BTreeMap::new(),
        containers: BTreeMap::from([(hostname.to_owned(), others), ("muster.default.shop".to_owned(), ours)]),
        numbers: Default::default(),
        own_labels: None,
        command_keys: KnownKeys::default(),
        desired: if index % 4 == 1 { desired_report(hostname) } else { DesiredReport::default() },
    };
    Host {
        id: HostId::random(),
        hostname: hostname.to_owned(),
        presence: Some(HostPresence {
            state: presence,
            epoch: 1,
            since_ms: ago(4_000),
            agent_version: "0.1.0".to_owned(),
            capabilities: (index % 4 != 2).then(|| vec![Capability::Exec, Capability::Yuno, Capability::Podman]),
        }),
        labels: vec![
            HostLabel {
                name: "canary".parse().unwrap(),
                value: "yes".to_owned(),
                origin: LabelOrigin::Console,
                hides: Some(hostname.to_owned()),
                operator: Some("anna".parse().unwrap()),
                set_ms: Some(ago(60)),
            },
            HostLabel {
                name: "site".parse().unwrap(),
                value: hostname.to_owned(),
                origin: LabelOrigin::Agent,
                hides: None,
                operator: None,
                set_ms: None,
            },
        ],
        state: Some(Received { at_ms: ago(3), value: state }),
        joined_ms: ago(90_000),
        certificate_expires_ms: ago(-2_500_000),
        cordon: (index % 4 == 1).then(|| CordonInfo {
            cordon: Cordon::Drained,
            operator: "anna".parse().unwrap(),
            set_ms: ago(300),
            to_remove: 2,
        }),
    }
}

pub(super) fn hosts(hostname: &str, count: usize) -> HostsView {
    let hosts: Vec<_> = (0..count).map(|index| host(&format!("{hostname}{index}"), index)).collect();
    let troubled = if count == 0 { vec![] } else { vec![unit(hostname, 1)] };
    HostsView {
        status: Status {
            version: "0.1.0".to_owned(),
            broker_connected: count != 0,
            hosts: count as u64 * 100,
            hosts_online: count as u64 * 60,
            hosts_unknown: 0,
            broker_url: "mqtts://192.0.2.1:8883".to_owned(),
            console_url: "https://192.0.2.1:7443".to_owned(),
        },
        shown: ShownHosts { page: 1, ..ShownHosts::default() },
        hosts,
        found: count as u64 * 100,
        troubled_count: troubled.len() as u64 * 3,
        troubled,
        glance: glance(hostname, count),
    }
}

pub(super) fn host_view(hostname: &str, units: usize) -> HostView {
    HostView {
        host: host(hostname, 1),
        alerts: vec![alert(hostname, hostname, AlertStanding::Raised, 1)],
        units: (0..units).map(|index| unit(hostname, index)).collect(),
        commands: commands(hostname),
        latest: latest(if hostname == HOSTILE { HOSTILE } else { "Memory" }),
        rollouts: vec![rollout(RolloutPhase::Running, 300)],
        range: TimeRange::SixHours,
    }
}

/// The fleet at a glance.
fn glance(hostname: &str, count: usize) -> FleetGlance {
    let many = count as u64;
    let listed = |mount: Option<&str>| {
        let one = |index: usize| ListedHost {
            host: HostId::random(),
            hostname: format!("{hostname}{index}"),
            mount: mount.map(|mount| if hostname == HOSTILE { HOSTILE.to_owned() } else { mount.to_owned() }),
            share: 0.97 - index as f64 * 0.11,
        };
        (0..count.min(5)).map(one).collect::<Vec<_>>()
    };
    let gib = f64::from(1 << 30);
    FleetGlance {
        presences: Presences { online: many * 60, offline: many * 38, stopped: many, never: many, unknown: 0 },
        alerts: Severities { critical: many, warning: many * 3, info: 1, more: count > 10 },
        overview: Overview {
            measured: count * 60,
            cpu: Some(0.12),
            memory: Some((many as f64 * gib, many as f64 * 7.7 * gib)),
            traffic: Some((many as f64 * 14_000.0, 512.0)),
            busiest: listed(None),
            crammed: listed(None),
            fullest: listed(Some("/var/lib/data")),
        },
        range: TimeRange::Day,
    }
}
