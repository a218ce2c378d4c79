//! Common parts of the specs of all kinds, accessible without knowing the kind.

use std::collections::BTreeMap;

use crate::{
    container::ContainerSpec,
    endpoint::{Needed, Provided},
    name::{LabelValue, Name, UnitName},
    probe::Probes,
    process::Limits,
    secret::SecretRef,
    unit::{ArtifactRef, Channel, ConfigRef, ConfigTemplate, ConfigTemplates, Restart, Rollback, Spec, YunoSpec},
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
                    Self::Files(spec) => each!(@ spec, $($field)+),
                    Self::Packages(spec) => each!(@ spec, $($field)+),
                }
            })+
        }
    };
    ($($(#[$doc:meta])* mut $name:ident -> $type:ty { $field:ident })+) => {
        impl Spec {
            $($(#[$doc])*
            #[must_use]
            pub fn $name(&mut self) -> &mut $type {
                match self {
                    Self::Yuno(spec) => &mut spec.$field,
                    Self::Container(spec) => &mut spec.$field,
                    Self::Files(spec) => &mut spec.$field,
                    Self::Packages(spec) => &mut spec.$field,
                }
            })+
        }
    };
    (@ $spec:ident, ref $field:ident) => { &$spec.$field };
    (@ $spec:ident, $field:ident) => { $spec.$field };
}

/// Defines a method for a field that each kind with a program has; `none` is its value for the others.
macro_rules! each_program {
    ($($(#[$doc:meta])* $name:ident -> $type:ty { $($field:tt)+ } or $none:expr;)+) => {
        impl Spec {
            $($(#[$doc])*
            #[must_use]
            pub fn $name(&self) -> $type {
                match self {
                    Self::Yuno(spec) => each!(@ spec, $($field)+),
                    Self::Container(spec) => each!(@ spec, $($field)+),
                    Self::Files(_) | Self::Packages(_) => $none,
                }
            })+
        }
    };
}

static NO_ENV: BTreeMap<String, String> = BTreeMap::new();
static NO_PROBES: Probes = Probes { start: None, ready: None, live: None };

each_program! {
    /// Its environment.
    env -> &BTreeMap<String, String> { ref env } or &NO_ENV;
    /// Its arguments.
    args -> &[String] { ref args } or &[];
    /// Its limits.
    limits -> Limits { limits } or Limits::default();
    /// The endpoints that it provides.
    provides -> &[Provided] { ref provides } or &[];
    /// The endpoints that it requires.
    needs -> &[Needed] { ref needs } or &[];
    /// Its probes.
    probes -> &Probes { ref probes } or &NO_PROBES;
    /// Its grace period.
    grace_ms -> u64 { grace_ms } or 0;
    /// When it is restarted automatically.
    restart -> Restart { restart } or Restart::Always;
}

each! {
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
    /// How long it has to be up in a revision before that is verified.
    verify_after_ms -> u64 { verify_after_ms }
    /// What happens if a change of revision fails.
    rollback -> Rollback { rollback }
    /// The secrets that it, its configs or its templates name.
    secrets -> &[SecretRef] { ref secrets }
}

each! {
    /// Its labels, mutable.
    mut labels_mut -> BTreeMap<Name, LabelValue> { labels }
    /// Its restart epoch, mutable.
    mut restart_epoch_mut -> u64 { restart_epoch }
    /// Its secrets, mutable.
    mut secrets_mut -> Vec<SecretRef> { secrets }
}

impl Spec {
    /// Returns a yuno's own fields, if it is one.
    #[must_use]
    pub fn yuno(&self) -> Option<&YunoSpec> {
        match self {
            Self::Yuno(spec) => Some(spec),
            Self::Container(_) | Self::Files(_) | Self::Packages(_) => None,
        }
    }

    /// Returns a container's own fields, if it is one.
    #[must_use]
    pub fn container(&self) -> Option<&ContainerSpec> {
        match self {
            Self::Container(spec) => Some(spec),
            Self::Yuno(_) | Self::Files(_) | Self::Packages(_) => None,
        }
    }

    /// Whether it has a program, and so a process, an environment, limits and probes.
    #[must_use]
    pub fn has_program(&self) -> bool {
        match self {
            Self::Yuno(_) | Self::Container(_) => true,
            Self::Files(_) | Self::Packages(_) => false,
        }
    }

    /// Returns its environment, mutable, if it has a program.
    #[must_use]
    pub fn env_mut(&mut self) -> Option<&mut BTreeMap<String, String>> {
        match self {
            Self::Yuno(spec) => Some(&mut spec.env),
            Self::Container(spec) => Some(&mut spec.env),
            Self::Files(_) | Self::Packages(_) => None,
        }
    }

    /// Returns its limits, mutable, if it has a program.
    #[must_use]
    pub fn limits_mut(&mut self) -> Option<&mut Limits> {
        match self {
            Self::Yuno(spec) => Some(&mut spec.limits),
            Self::Container(spec) => Some(&mut spec.limits),
            Self::Files(_) | Self::Packages(_) => None,
        }
    }

    /// Returns how long it may take to come up in another revision, in milliseconds. What has no program is up at once.
    #[must_use]
    pub fn healthy_within(&self) -> u64 {
        match self {
            Self::Yuno(spec) => spec.healthy_within(),
            Self::Container(spec) => spec.healthy_within(),
            Self::Files(_) | Self::Packages(_) => 0,
        }
    }

    /// Returns the user that its program runs as, on its host or inside a container, if it names one.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        match self {
            Self::Yuno(spec) => spec.user.as_deref(),
            Self::Container(spec) => spec.user.as_deref(),
            Self::Files(_) | Self::Packages(_) => None,
        }
    }

    /// Returns its artifact, if it has one.
    #[must_use]
    pub fn artifact(&self) -> Option<&ArtifactRef> {
        match self {
            Self::Yuno(spec) => Some(&spec.artifact),
            Self::Container(spec) => spec.image.artifact(),
            Self::Files(_) | Self::Packages(_) => None,
        }
    }

    /// Returns all its artifacts: units of files may have several.
    #[must_use]
    pub fn artifacts(&self) -> Vec<&ArtifactRef> {
        match self {
            Self::Files(spec) => spec.files.values().filter_map(|entry| entry.artifact.as_ref()).collect(),
            Self::Yuno(_) | Self::Container(_) | Self::Packages(_) => self.artifact().into_iter().collect(),
        }
    }

    /// Returns the same, mutable.
    #[must_use]
    pub fn artifact_mut(&mut self) -> Option<&mut ArtifactRef> {
        match self {
            Self::Yuno(spec) => Some(&mut spec.artifact),
            Self::Container(spec) => spec.image.artifact_mut(),
            Self::Files(_) | Self::Packages(_) => None,
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
            Self::Container(_) | Self::Files(_) | Self::Packages(_) => &mut [],
        }
    }

    /// Returns what its templates name on its host, with the values; some kinds have no templates.
    #[must_use]
    pub fn values(&self) -> Option<&BTreeMap<String, serde_json::Value>> {
        match self {
            Self::Yuno(spec) => Some(&spec.values),
            Self::Files(spec) => Some(&spec.values),
            Self::Container(spec) => Some(&spec.values),
            Self::Packages(_) => None,
        }
    }

    /// Replaces these, for a kind that has templates.
    pub fn set_values(&mut self, values: BTreeMap<String, serde_json::Value>) {
        match self {
            Self::Yuno(spec) => spec.values = values,
            Self::Files(spec) => spec.values = values,
            Self::Container(spec) => spec.values = values,
            Self::Packages(_) => {}
        }
    }

    /// Returns the templates in its configs; some kinds have no configs.
    #[must_use]
    pub fn config_templates(&self) -> &[ConfigTemplate] {
        self.yuno().map_or(&[], |yuno| &yuno.config_templates.templates)
    }

    /// Replaces these, for a kind that has configs. What they name has no values then.
    pub fn set_config_templates(&mut self, templates: Vec<ConfigTemplate>) {
        if let Self::Yuno(spec) = self {
            spec.config_templates = ConfigTemplates { templates, values: BTreeMap::new() };
        }
    }

    /// Returns what the templates in its configs name on its host, with the values.
    #[must_use]
    pub fn config_values(&self) -> Option<&BTreeMap<String, serde_json::Value>> {
        self.yuno().map(|yuno| &yuno.config_templates.values)
    }

    /// Replaces these, for a kind that has configs.
    pub fn set_config_values(&mut self, values: BTreeMap<String, serde_json::Value>) {
        if let Self::Yuno(spec) = self {
            spec.config_templates.values = values;
        }
    }

    /// Takes all that a host fills in from the spec before.
    pub fn keep_values(&mut self, before: &Self) {
        self.set_values(before.values().cloned().unwrap_or_default());
        self.set_config_values(before.config_values().cloned().unwrap_or_default());
    }

    /// Whether it has any of what a host fills in.
    #[must_use]
    pub fn has_values(&self) -> bool {
        let has_any = |values: Option<&BTreeMap<_, _>>| values.is_some_and(|values| !values.is_empty());
        has_any(self.values()) || has_any(self.config_values())
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
