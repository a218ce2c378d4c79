//! An agent's store as tables in memory: what is committed outlives a crash, and a crash comes before a commit or after it.
//!
//! Each function stands for the statements of the function of the same name in `src/agent/store`; [`super::shadow`] has both
//! do the same in some seeds, and compares.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use muster_agent::store::{
    AgentLife,
    journal::{self, KEPT_AFTER_EXPIRY_MS},
};
use muster_base::chance;
use muster_rules::presence;
use muster_session::store::{OutboxRead, RepeatedCommand, StoreReply, TimeBack};
use muster_topics::{
    Millis, V1,
    ack::ReportAck,
    command::Command,
    desired::DeploymentName,
    name::{CommandId, UnitName},
    outcome::{Content, Outcome, Output, Report, Status},
    unit::Run,
};

use super::{documents::StoredDocument, rollouts::StoredAdmission, shadow::AgentShadow};

/// The agent ends here, in the middle of what it does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crash;

/// A row of `journal`.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Nothing for `{}`: it is never taken up again.
    pub(super) command: Option<Rc<Command>>,
    pub(super) expires_ms: Millis,
    pub(super) answer: Option<(ReportAck, Vec<u8>, Status)>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    pub(super) journal: BTreeMap<CommandId, Row>,
    pub(super) outbox: BTreeMap<ReportAck, Vec<u8>>,
    /// `meta`.
    life: Option<AgentLife>,
    /// What `unit` says of each: generation, and whether it should run.
    pub(super) units: BTreeMap<UnitName, (u64, Run)>,
    /// The deployments that units belong to.
    pub(super) owners: BTreeMap<UnitName, DeploymentName>,
    /// `document`, and what became of its deployments.
    pub(super) document: StoredDocument,
    /// What the host says of the deployment that is rolled out, and how far it is.
    pub(super) admission: StoredAdmission,
    /// Which commands have edited units, as often as they did: the effects of edits.
    pub(super) edits: Vec<CommandId>,
    /// The epochs of the last lives.
    pub(super) lives: Vec<u64>,
    /// The lines of the file `instances`.
    pub(super) instances: String,
}

#[derive(Debug, Default)]
struct Inner {
    tables: Tables,
    /// The agent is killed at the commit after so many more; before it, or after.
    fuse: Option<(u64, bool)>,
    shadow: Option<AgentShadow>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Disk(Rc<RefCell<Inner>>);

impl Disk {
    /// The same, block by block.
    pub(super) fn cloned(&self) -> Self {
        let tables = self.0.borrow().tables.clone();
        Self(Rc::new(RefCell::new(Inner { tables, ..Inner::default() })))
    }

    /// With the product's own store beside it.
    pub(super) fn shadowed() -> Self {
        Self(Rc::new(RefCell::new(Inner { shadow: Some(AgentShadow::new()), ..Inner::default() })))
    }

    pub(super) fn set_fuse(&self, fuse: Option<(u64, bool)>) {
        self.0.borrow_mut().fuse = fuse;
    }

    pub(super) fn read<T>(&self, of: impl FnOnce(&Tables) -> T) -> T {
        of(&self.0.borrow().tables)
    }

    /// One transaction.
    pub(super) fn write<T>(&self, of: impl FnOnce(&mut Transaction<'_>) -> T) -> Result<T, Crash> {
        let mut inner = self.0.borrow_mut();
        let Inner { tables, fuse, shadow } = &mut *inner;
        let killed = match fuse {
            Some((0, before)) => Some(*before),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        };
        if killed == Some(true) {
            return Err(Crash);
        }
        if let Some(shadow) = shadow {
            shadow.begin();
        }
        let done = of(&mut Transaction { tables, shadow: shadow.as_mut() });
        if let Some(shadow) = shadow {
            shadow.commit();
        }
        if killed.is_some() { Err(Crash) } else { Ok(done) }
    }
}

impl Disk {
    /// Reads what is published next.
    pub(super) fn read_outbox<W>(&self, read: OutboxRead) -> StoreReply<W> {
        match read {
            OutboxRead::FirstReports(limit) => {
                let keys = self.read(|tables| tables.outbox.keys().take(limit).copied().collect::<Vec<_>>());
                if let Some(shadow) = &mut self.0.borrow_mut().shadow {
                    shadow.first(limit, &keys);
                }
                StoreReply::Reports(keys)
            }
            OutboxRead::Report(key) => {
                let payload = self.read(|tables| tables.outbox.get(&key).cloned());
                if let Some(shadow) = &mut self.0.borrow_mut().shadow {
                    shadow.payload(key, payload.as_deref());
                }
                StoreReply::Report(payload)
            }
            // Measurements take the same path as answers, by the same rules ([`muster_rules::outbox_retry`]).
            OutboxRead::FirstBatches(_) => StoreReply::Batches(Vec::new()),
            // Its units have no tasks.
            OutboxRead::TaskEnds(_) => StoreReply::TaskEnds(Vec::new()),
        }
    }
}

pub(super) struct Transaction<'a> {
    pub(super) tables: &'a mut Tables,
    shadow: Option<&'a mut AgentShadow>,
}

impl Transaction<'_> {
    /// See [`muster_agent::store::Store::begin_life`].
    pub(super) fn begin_life(&mut self, now_ms: Millis) -> AgentLife {
        let last = self.tables.life.map(|life| i64::try_from(life.epoch).unwrap());
        let epoch = u64::try_from(presence::epoch(now_ms, last, chance::random())).unwrap();
        let life = AgentLife {
            epoch,
            last_epoch: last.map_or(0, |last| u64::try_from(last).unwrap()),
            ..self.tables.life.unwrap_or(AgentLife {
                epoch,
                created_ms: now_ms,
                signed_ms: 0,
                lost_ms: None,
                noticed_ms: None,
                last_epoch: 0,
                console_epoch: 0,
            })
        };
        self.tables.life = Some(life);
        self.tables.lives = presence::with_life(&self.tables.lives, epoch);
        life
    }

    /// When the store was made.
    pub(super) fn insert(
        &mut self,
        id: CommandId,
        command: Option<Rc<Command>>,
        expires_ms: Millis,
        signed_ms: Millis,
    ) -> bool {
        self.remember_signed_time(signed_ms);
        // ON CONFLICT DO NOTHING
        let rows = u64::from(!self.tables.journal.contains_key(&id));
        if let Some(shadow) = &mut self.shadow {
            shadow.insert(id, expires_ms, signed_ms, rows);
        }
        self.tables.journal.entry(id).or_insert(Row { command, expires_ms, answer: None });
        journal::is_new(rows)
    }

    /// Nothing if it has its answer already (`finished_ms IS NULL`), or was never entered.
    pub(super) fn finish(&mut self, id: CommandId, status: Status, now_ms: Millis) -> Option<ReportAck> {
        let done = self.finish_row(id, status.clone(), now_ms);
        if let Some(shadow) = &mut self.shadow {
            shadow.finish(id, status, now_ms, done);
        }
        done
    }

    fn finish_row(&mut self, id: CommandId, status: Status, now_ms: Millis) -> Option<ReportAck> {
        let row = self.tables.journal.get_mut(&id).filter(|row| row.answer.is_none())?;
        let key = ReportAck { command: id, seq: 1 };
        let (stdout, stderr) = (Output::default(), Output::default());
        let outcome = Outcome { status: status.clone(), started_ms: None, finished_ms: now_ms, stdout, stderr };
        let report = Report { v: V1, command: id, seq: key.seq, at_ms: now_ms, content: Content::Done { outcome } };
        let payload = serde_json::to_vec(&report).unwrap();
        row.answer = Some((key, payload.clone(), status));
        self.tables.outbox.entry(key).or_insert(payload);
        Some(key)
    }

    pub(super) fn answer_again(&mut self, id: CommandId) -> Option<RepeatedCommand> {
        let known = self.tables.journal.get(&id).map(|row| match &row.answer {
            Some((key, payload, _)) => {
                self.tables.outbox.entry(*key).or_insert_with(|| payload.clone());
                RepeatedCommand::Answered(*key)
            }
            None => RepeatedCommand::Unfinished,
        });
        if let Some(shadow) = &mut self.shadow {
            shadow.answer_again(id, known);
        }
        known
    }

    pub(super) fn acknowledge(&mut self, keys: &[ReportAck], signed_ms: Millis) {
        for key in keys {
            self.tables.outbox.remove(key);
        }
        self.remember_signed_time(signed_ms);
        if let Some(shadow) = &mut self.shadow {
            shadow.acknowledge(keys, signed_ms);
        }
    }

    pub(super) fn prune(&mut self, signed_ms: Millis) {
        let before_ms = journal::kept_from_ms(signed_ms, KEPT_AFTER_EXPIRY_MS);
        let outbox = &self.tables.outbox;
        let waits = |id: &CommandId| outbox.keys().any(|key| key.command == *id);
        self.tables.journal.retain(|id, row| row.answer.is_none() || row.expires_ms >= before_ms || waits(id));
        if let Some(shadow) = &mut self.shadow {
            shadow.prune(signed_ms, self.tables.journal.len());
        }
    }

    /// See [`muster_agent::store::Store::put_time_back`].
    pub(super) fn put_time_back(&mut self, time_back: TimeBack) {
        if let Some(life) = &mut self.tables.life {
            (life.signed_ms, life.created_ms) = (time_back.signed_ms, time_back.created_ms);
        }
    }

    /// See [`muster_agent::store::Store::note_older_disk`].
    pub(super) fn note_older_disk(&mut self, epoch: u64, lost_ms: Millis) {
        self.tables.lives = presence::with_life(&self.tables.lives, epoch);
        if let Some(life) = &mut self.tables.life {
            life.epoch = life.epoch.max(epoch);
            life.lost_ms = life.lost_ms.max(Some(lost_ms));
        }
    }

    fn remember_signed_time(&mut self, signed_ms: Millis) {
        if let Some(life) = &mut self.tables.life {
            life.signed_ms = life.signed_ms.max(signed_ms);
        }
    }
}
