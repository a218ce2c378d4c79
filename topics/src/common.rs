//! Common parts of the specs of all kinds, accessible without knowing the kind.

use std::collections::BTreeMap;

use crate::{
    container::ContainerSpec,
    endpoint::{Needed, Provided},
    name::{LabelValue, Name, UnitName},
    probe::Probes,
    process::Limits,
    secret::SecretRef,
    unit::{ArtifactRef, Channel, ConfigRef, Spec, YunoSpec},
};

/// Defines a method for a field that each kind has.
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
    /// Its limits.
    limits -> Limits { limits }
    /// The endpoints that it provides.
    provides -> &[Provided] { ref provides }
    /// The endpoints that it requires.
    needs -> &[Needed] { ref needs }
    /// Its probes.
    probes -> &Probes { ref probes }
    /// Its labels.
    labels -> &BTreeMap<Name, LabelValue> { ref labels }
    /// Units that it waits for while they are starting.
    after -> &[UnitName] { ref after }
    /// Units that have to run before it is started.
    requires -> &[UnitName] { ref requires }
    /// Its priority among units that start at the same time.
    priority -> u8 { priority }
    /// Its restart epoch.
    restart_epoch -> u64 { restart_epoch }
    /// Its grace period.
    grace_ms -> u64 { grace_ms }
}

impl Spec {
    /// Returns a yuno's own fields, if it is one.
    #[must_use]
    pub fn yuno(&self) -> Option<&YunoSpec> {
        match self {
            Self::Yuno(spec) => Some(spec),
            Self::Container(_) => None,
        }
    }

    /// Returns a container's own fields, if it is one.
    #[must_use]
    pub fn container(&self) -> Option<&ContainerSpec> {
        match self {
            Self::Container(spec) => Some(spec),
            Self::Yuno(_) => None,
        }
    }

    /// Returns its environment, mutable.
    #[must_use]
    pub fn env_mut(&mut self) -> &mut BTreeMap<String, String> {
        match self {
            Self::Yuno(spec) => &mut spec.env,
            Self::Container(spec) => &mut spec.env,
        }
    }

    /// Returns its limits, mutable.
    #[must_use]
    pub fn limits_mut(&mut self) -> &mut Limits {
        match self {
            Self::Yuno(spec) => &mut spec.limits,
            Self::Container(spec) => &mut spec.limits,
        }
    }

    /// Returns its labels, mutable.
    #[must_use]
    pub fn labels_mut(&mut self) -> &mut BTreeMap<Name, LabelValue> {
        match self {
            Self::Yuno(spec) => &mut spec.labels,
            Self::Container(spec) => &mut spec.labels,
        }
    }

    /// Returns its restart epoch, mutable.
    #[must_use]
    pub fn restart_epoch_mut(&mut self) -> &mut u64 {
        match self {
            Self::Yuno(spec) => &mut spec.restart_epoch,
            Self::Container(spec) => &mut spec.restart_epoch,
        }
    }

    /// Returns its artifact, if it has one.
    #[must_use]
    pub fn artifact(&self) -> Option<&ArtifactRef> {
        match self {
            Self::Yuno(spec) => Some(&spec.artifact),
            Self::Container(spec) => spec.image.artifact(),
        }
    }

    /// Returns the same, mutable.
    #[must_use]
    pub fn artifact_mut(&mut self) -> Option<&mut ArtifactRef> {
        match self {
            Self::Yuno(spec) => Some(&mut spec.artifact),
            Self::Container(spec) => spec.image.artifact_mut(),
        }
    }

    /// Returns its configs; some kinds have none.
    #[must_use]
    pub fn configs(&self) -> &[ConfigRef] {
        self.yuno().map_or(&[], |yuno| &yuno.configs)
    }

    /// Returns the same, mutable.
    #[must_use]
    pub fn configs_mut(&mut self) -> &mut [ConfigRef] {
        match self {
            Self::Yuno(spec) => &mut spec.configs,
            Self::Container(_) => &mut [],
        }
    }

    /// Returns the secrets that its configs name; some kinds have none.
    #[must_use]
    pub fn secrets(&self) -> &[SecretRef] {
        self.yuno().map_or(&[], |yuno| &yuno.secrets)
    }

    /// Replaces these, for a kind that has any.
    pub fn set_secrets(&mut self, secrets: Vec<SecretRef>) {
        if let Self::Yuno(spec) = self {
            spec.secrets = secrets;
        }
    }

    /// Returns its channel.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.yuno().map_or(Channel::None, |yuno| yuno.channel)
    }

    /// Whether it is for one run.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.yuno().is_some_and(|yuno| yuno.transient)
    }

    /// Returns the user of its host that it runs as; `None` for the agent's own. A container's runtime runs as the
    /// agent does, whatever the user inside.
    #[must_use]
    pub fn host_user(&self) -> Option<&str> {
        self.yuno().and_then(|yuno| yuno.user.as_deref())
    }
}
