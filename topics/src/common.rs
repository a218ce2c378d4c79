//! Common parts of the specs of all kinds, accessible without knowing the kind.

use std::collections::BTreeMap;

use crate::{
    container::ContainerSpec,
    endpoint::{Needed, Provided},
    name::{LabelValue, Name, UnitName},
    probe::Probes,
    process::Limits,
    unit::{ArtifactRef, Channel, ConfigRef, Spec, YunoSpec},
};

/// One method for a field that each kind has.
macro_rules! each {
    ($($(#[$doc:meta])* $name:ident -> $type:ty { $($field:tt)+ })+) => {
        impl Spec {
            $($(#[$doc])*
            #[must_use]
            pub fn $name(&self) -> $type {
                match self {
                    Self::Yuno(spec) => each!(@ spec, $($field)+),
                    Self::Container(spec) => each!(@ spec, $($field)+),
                }
            })+
        }
    };
    (@ $spec:ident, ref $field:ident) => { &$spec.$field };
    (@ $spec:ident, $field:ident) => { $spec.$field };
}

each! {
    /// Its environment.
    env -> &BTreeMap<String, String> { ref env }
    /// Its arguments.
    args -> &[String] { ref args }
    /// What it may use.
    limits -> Limits { limits }
    /// The endpoints that it provides.
    provides -> &[Provided] { ref provides }
    /// The endpoints that it needs.
    needs -> &[Needed] { ref needs }
    /// How it is found out whether it is well.
    probes -> &Probes { ref probes }
    /// What it is known by beside its name.
    labels -> &BTreeMap<Name, LabelValue> { ref labels }
    /// Units that it waits for while they are on their way.
    after -> &[UnitName] { ref after }
    /// Units that have to run before it is started.
    requires -> &[UnitName] { ref requires }
    /// Which of those that start at the same time go first.
    priority -> u8 { priority }
    /// How often it was restarted on demand.
    restart_epoch -> u64 { restart_epoch }
    /// How long it may take to end.
    grace_ms -> u64 { grace_ms }
}

impl Spec {
    /// A yuno's own fields, if it is one.
    #[must_use]
    pub fn yuno(&self) -> Option<&YunoSpec> {
        match self {
            Self::Yuno(spec) => Some(spec),
            Self::Container(_) => None,
        }
    }

    /// A container's own fields, if it is one.
    #[must_use]
    pub fn container(&self) -> Option<&ContainerSpec> {
        match self {
            Self::Container(spec) => Some(spec),
            Self::Yuno(_) => None,
        }
    }

    /// Its environment, to be changed.
    #[must_use]
    pub fn env_mut(&mut self) -> &mut BTreeMap<String, String> {
        match self {
            Self::Yuno(spec) => &mut spec.env,
            Self::Container(spec) => &mut spec.env,
        }
    }

    /// What it may use, to be changed.
    #[must_use]
    pub fn limits_mut(&mut self) -> &mut Limits {
        match self {
            Self::Yuno(spec) => &mut spec.limits,
            Self::Container(spec) => &mut spec.limits,
        }
    }

    /// What it is known by beside its name, to be changed.
    #[must_use]
    pub fn labels_mut(&mut self) -> &mut BTreeMap<Name, LabelValue> {
        match self {
            Self::Yuno(spec) => &mut spec.labels,
            Self::Container(spec) => &mut spec.labels,
        }
    }

    /// How often it was restarted on demand, to be changed.
    #[must_use]
    pub fn restart_epoch_mut(&mut self) -> &mut u64 {
        match self {
            Self::Yuno(spec) => &mut spec.restart_epoch,
            Self::Container(spec) => &mut spec.restart_epoch,
        }
    }

    /// The artifact that it is made of, if it is of one.
    #[must_use]
    pub fn artifact(&self) -> Option<&ArtifactRef> {
        match self {
            Self::Yuno(spec) => Some(&spec.artifact),
            Self::Container(spec) => spec.image.artifact(),
        }
    }

    /// The same, to be changed.
    #[must_use]
    pub fn artifact_mut(&mut self) -> Option<&mut ArtifactRef> {
        match self {
            Self::Yuno(spec) => Some(&mut spec.artifact),
            Self::Container(spec) => spec.image.artifact_mut(),
        }
    }

    /// Its configs, of which a kind may have none.
    #[must_use]
    pub fn configs(&self) -> &[ConfigRef] {
        self.yuno().map_or(&[], |yuno| &yuno.configs)
    }

    /// The same, to be changed.
    #[must_use]
    pub fn configs_mut(&mut self) -> &mut [ConfigRef] {
        match self {
            Self::Yuno(spec) => &mut spec.configs,
            Self::Container(_) => &mut [],
        }
    }

    /// How it speaks with its agent.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.yuno().map_or(Channel::None, |yuno| yuno.channel)
    }

    /// Whether it is there for one run.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.yuno().is_some_and(|yuno| yuno.transient)
    }

    /// The user of its host that it runs as; nothing for the agent's own. A container's runtime runs as the agent does,
    /// whatever user there is inside.
    #[must_use]
    pub fn host_user(&self) -> Option<&str> {
        self.yuno().and_then(|yuno| yuno.user.as_deref())
    }
}
