//! Documents of desired state: what the console wants of hosts, and what hosts make of it.
//!
//! The console's half is a model: it keeps one document for each host, publishes head and body when it makes one and when it
//! connects, and again, every half a minute, what a host does not report. The host's half is the product's session and rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use muster_rules::{
    authorise::LocalPolicy,
    desired::{
        body::{self, HeldBack, HostRules, PresentUnit, PresentUnits},
        head::KnownDocument,
        host_body::HostBody,
    },
};
use muster_topics::{
    Millis, V1,
    asker::Asker,
    desired::{
        Admission, DeploymentName, DeploymentReport, DeploymentTarget, DeploymentUnit, DeploymentVersion, DesiredBody,
        DesiredDeployment, DesiredHead, DesiredMark, DesiredReport, UnitRemoval,
    },
    name::{Digest, HostId, Name, UnitName},
    topic::{HostTopic, Topic},
    unit::{Run, Spec},
};
use serde_json::json;

use super::{
    console::Console,
    disk::Tables,
    random::permille,
    rollouts,
    watch::Promise,
    wire::{Body, Order},
    world::{Around, Event},
};

/// How often the console compares what hosts report.
const SYNC_MS: Millis = 30_000;

/// The deployments, each with the units that it may have.
const DEPLOYMENTS: [(&str, [&str; 3]); 2] = [
    ("default/x", ["default/x0", "default/x1", "default/x2"]),
    ("default/y", ["default/y0", "default/y1", "default/y2"]),
];

/// A document of one host.
#[derive(Clone, Debug)]
pub(super) struct Document {
    pub(super) head: DesiredHead,
    pub(super) body: DesiredBody,
    bytes: Rc<Vec<u8>>,
}

/// The console's documents.
#[derive(Debug, Default)]
pub(super) struct Documents {
    pub(super) present: BTreeMap<HostId, Document>,
    bodies: BTreeMap<Digest, Rc<Vec<u8>>>,
}

impl Documents {
    /// Answers a host that fetches a body.
    pub(super) fn body(&self, digest: &Digest) -> Option<Vec<u8>> {
        self.bodies.get(digest).map(|bytes| bytes.to_vec())
    }

    /// Makes the next document of a host: any of the units, and of those that it had some are to go, and some are lost.
    fn next(&mut self, host: HostId, rolled_out: Option<u32>, issued_ms: Millis) -> Document {
        let before = self.present.get(&host);
        let generation = before.map_or(0, |before| before.head.mark.generation) + 1;
        let version = |(deployment, units): (&str, [&str; 3])| DesiredDeployment {
            version: DeploymentVersion {
                deployment: deployment.parse().unwrap(),
                number: u32::try_from(generation).unwrap(),
                parent: None,
                target: DeploymentTarget { select: "label.n=0".parse().unwrap() },
                units: units.into_iter().filter(|_| permille(600)).map(unit).collect(),
                rollout: serde_json::Map::new(),
            },
            asked_by: Asker::admin(Name::admin()),
            asked_by_others: BTreeMap::new(),
            admission: Admission::Free,
            secrets: BTreeMap::new(),
            adopt: Vec::new(),
            detached: Vec::new(),
            instances: BTreeMap::new(),
            plan: None,
        };
        let deployments: Vec<_> = DEPLOYMENTS.into_iter().filter(|_| permille(800)).map(version).collect();
        let listed: BTreeSet<&UnitName> =
            deployments.iter().flat_map(|of| &of.version.units).map(|listed| &listed.unit).collect();
        let had = DEPLOYMENTS.into_iter().flat_map(|(deployment, units)| units.map(|unit| (deployment, unit)));
        let remove = had
            .filter(|(_, unit)| !listed.contains(&unit.parse::<UnitName>().unwrap()) && permille(400))
            .map(|(deployment, unit)| UnitRemoval {
                unit: unit.parse().unwrap(),
                deployment: deployment.parse().unwrap(),
                version: 1,
                purge: false,
                at_once: permille(300),
            })
            .collect();
        let deployments = deployments.into_iter().chain(rolled_out.map(rollouts::version)).collect();
        let body = DesiredBody { deployments, remove, ..DesiredBody::default() };
        let bytes = Rc::new(serde_json::to_vec(&body).unwrap());
        let digest = Digest::of(&bytes);
        self.bodies.insert(digest.clone(), Rc::clone(&bytes));
        let mark = DesiredMark { epoch: 1, generation };
        let head = DesiredHead { v: V1, host, mark, issued_ms, digest, size_bytes: bytes.len() as u64 };
        let document = Document { head, body, bytes };
        self.present.insert(host, document.clone());
        document
    }
}

fn unit(name: &str) -> DeploymentUnit {
    let artifact = json!({"sha256": Digest::of(b""), "size_bytes": 7, "role": "hello", "version": "1"});
    let spec: Spec = serde_json::from_value(json!({"kind": "yuno", "artifact": artifact})).unwrap();
    let run = if permille(800) { Run::Running } else { Run::Stopped };
    DeploymentUnit { unit: name.parse().unwrap(), spec: Box::new(spec), run, placement: None }
}

impl Console {
    /// An operator changes what is desired of a host.
    pub(super) fn deploy(&mut self, host: HostId, around: &mut Around<'_>) {
        let rolled_out = self.rollouts.state.as_ref().and_then(|state| state.version_of(host));
        let document = self.documents.next(host, rolled_out, muster_base::clock::now_ms());
        around.note(|| format!("the console makes document {} of {host}", document.head.mark));
        around.watch.issues(&document.head, &document.body);
        self.publish_document(host, around);
    }

    fn publish_document(&mut self, host: HostId, around: &mut Around<'_>) {
        let Some(Document { head, bytes, .. }) = self.documents.present.get(&host).cloned() else { return };
        let topic = || Topic::Host(host, HostTopic::Desired);
        let signed = around.seal.sign(Order::Head(head), false);
        self.publish_as(topic(), signed, true, around);
        self.publish_as(topic(), Body::Bytes(bytes), false, around);
    }

    /// Publishes all documents, on a new connection.
    pub(super) fn publish_documents(&mut self, around: &mut Around<'_>) {
        for host in self.documents.present.keys().copied().collect::<Vec<_>>() {
            self.publish_document(host, around);
        }
    }

    /// Publishes again what hosts do not report.
    pub(super) fn sync(&mut self, around: &mut Around<'_>) {
        let reported = |host: &HostId| {
            let (held, _) = self.ledger.heartbeats.get(host)?;
            serde_json::from_value::<DesiredMark>(held.state["desired"]["mark"].clone()).ok()
        };
        let differ = self.documents.present.iter().filter(|(host, of)| reported(host) != Some(of.head.mark));
        for host in differ.map(|(host, _)| *host).collect::<Vec<_>>() {
            self.publish_document(host, around);
        }
        around.after(SYNC_MS, Event::Sync(self.life));
    }
}

/// What an agent's store says of its document.
#[derive(Clone, Debug, Default)]
pub(super) struct StoredDocument {
    pub(super) mark: DesiredMark,
    pub(super) digest: Option<Digest>,
    versions: BTreeMap<DeploymentName, u32>,
}

impl StoredDocument {
    pub(super) fn known(&self) -> KnownDocument {
        KnownDocument { mark: self.mark, digest: self.digest.clone(), refused: None }
    }

    pub(super) fn report(&self) -> DesiredReport {
        let report = |(name, version): (&DeploymentName, &u32)| {
            (name.clone(), DeploymentReport { version: *version, refused: None, waits: None })
        };
        DesiredReport {
            mark: self.mark,
            digest: self.digest.clone(),
            deployments: self.versions.iter().map(report).collect(),
            ..DesiredReport::default()
        }
    }
}

impl Tables {
    /// Makes what a document says the desired state, as `store::deployment::apply`: without a policy for removals. Returns the
    /// units that were removed.
    pub(super) fn apply_document(&mut self, head: &DesiredHead, body: &HostBody) -> Vec<UnitName> {
        let (policy, realms) = (LocalPolicy::default(), ["default".parse().unwrap()].into());
        let present: PresentUnits = self
            .units
            .iter()
            .map(|(name, (_, run))| {
                (
                    name.clone(),
                    PresentUnit {
                        deployment: self.owners.get(name).cloned(),
                        run: *run,
                        is_orphan: false,
                        is_leaving: false,
                    },
                )
            })
            .collect();
        let plan =
            body::plan(body, &present, &HeldBack::new(), HostRules { policy: &policy, realms: &realms, user: "root" });
        let mut stored =
            StoredDocument { mark: head.mark, digest: Some(head.digest.clone()), ..StoredDocument::default() };
        for (deployment, wishes) in plan.deployments {
            let version = &deployment.version;
            for wish in wishes.unwrap() {
                let generation = self.units.get(&wish.unit).map_or(0, |(generation, _)| *generation);
                if let Some(run) = wish.run {
                    self.units.insert(wish.unit.clone(), (generation + 1, run));
                }
                self.owners.insert(wish.unit, version.deployment.clone());
            }
            stored.versions.insert(version.deployment.clone(), version.number);
        }
        let removed: Vec<UnitName> = plan.removals.into_iter().map(|removal| removal.unit).collect();
        for unit in &removed {
            self.units.remove(unit);
            self.owners.remove(unit);
        }
        self.document = stored;
        removed
    }
}

/// What the watch knows of a document.
#[derive(Clone, Debug)]
struct IssuedDocument {
    digest: Digest,
    removes: BTreeSet<UnitName>,
}

/// The documents that were issued.
#[derive(Debug, Default)]
pub(super) struct IssuedDocuments(BTreeMap<(HostId, DesiredMark), IssuedDocument>);

impl super::watch::Watch {
    fn issues(&mut self, head: &DesiredHead, body: &DesiredBody) {
        let removes = body.remove.iter().map(|removal| removal.unit.clone()).collect();
        let issued = IssuedDocument { digest: head.digest.clone(), removes };
        self.documents.0.insert((head.host, head.mark), issued);
    }

    /// A machine stores a document in place of one with the mark `before`, and removes units.
    pub(super) fn stores(&mut self, host: HostId, before: DesiredMark, head: &DesiredHead, removed: &[UnitName]) {
        let mark = head.mark;
        self.check(Promise::LatestDocument, before < mark, || format!("{host} stores document {mark} after {before}"));
        let issued = self.documents.0.get(&(host, mark)).cloned();
        let is_genuine = issued.as_ref().is_some_and(|issued| issued.digest == head.digest);
        self.check(Promise::NotForged, is_genuine, || format!("{host} stores a document {mark} that nobody made"));
        for unit in removed {
            let is_named = issued.as_ref().is_some_and(|issued| issued.removes.contains(unit));
            self.check(Promise::NamedRemoval, is_named, || {
                format!("{host} removes {unit}, which {mark} does not name")
            });
        }
    }
}

impl super::world::World {
    /// What the console wants of a host is so there.
    pub(super) fn judge_document(&mut self, index: usize) {
        let Self { machines, console, watch, .. } = self;
        let machine = &machines[index];
        let Some(Document { head, body, .. }) = console.documents.present.get(&machine.host) else { return };
        let (stored, owners) = machine.disk.read(|tables| (tables.document.clone(), tables.owners.clone()));
        watch.check(Promise::Desired, stored.digest.as_ref() == Some(&head.digest) && stored.mark == head.mark, || {
            format!("{} has document {}, and should have {}", machine.host, stored.mark, head.mark)
        });
        for DesiredDeployment { version, .. } in &body.deployments {
            for listed in &version.units {
                let is_there = owners.get(&listed.unit) == Some(&version.deployment);
                watch.check(Promise::Desired, is_there, || format!("{} has no {}", machine.host, listed.unit));
            }
        }
        for removal in &body.remove {
            let is_gone = owners.get(&removal.unit) != Some(&removal.deployment);
            watch.check(Promise::Desired, is_gone, || format!("{} still has {}", machine.host, removal.unit));
        }
    }
}
