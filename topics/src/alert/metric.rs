//! The metrics that rules of alerts are about, and the table that says what each is made from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::catalogue::Measure;

/// What a rule measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The ratio of all processors' time used.
    CpuBusy,
    /// The ratio of memory that is not available.
    MemoryUsed,
    /// The used ratio of a file system; `of` is its mount point.
    DiskUsed,
    /// The used ratio of a file system's inodes; `of` is its mount point, here and below.
    InodesUsed,
    /// 1 while a file system does not respond.
    DiskUnresponsive,
    /// The ratio of open files to the limit of the whole host.
    FilesUsed,
    /// The ratio of processes and threads to the limit.
    PidsUsed,
    /// The ratio of TCP's local ports that are used by outgoing connections.
    PortsUsed,
    /// The ratio of tracked connections to the firewall's limit.
    ConntrackUsed,
    /// The five-minute load per logical processor.
    LoadPerCore,
    /// The warmest sensor, in degrees Celsius.
    Temperature,
    /// The ratio of all processors' time used by a unit; `of` is the unit, here and below.
    UnitCpuBusy,
    /// A unit's resident memory, in bytes.
    UnitMemory,
    /// The ratio of what a container has written to its limit.
    UnitDiskUsed,
    /// How often a unit was restarted automatically since it last was up for five minutes.
    UnitRestarts,
    /// 1 while a unit is held as `broken`.
    UnitBroken,
    /// 1 while a unit should run and cannot be started, or has ended and is not restarted.
    UnitFailed,
    /// 1 while a unit is rolled back to its last verified revision.
    UnitRolledBack,
    /// The remaining ratio of the lifetime of the host's certificate. An agent renews it at a third.
    CertificateLeft,
    /// The used ratio of the file system of the agent's folder.
    StoreUsed,
    /// The difference of the host's clock from the console's, in seconds.
    ClockOff,
    /// 1 for a day after the agent's store went back, was lost, or was found damaged.
    StoreLost,
    /// 1 while nothing can be written in the agent's folder: commands are refused, and desired changes wait.
    StoreUnwritable,
    /// 1 while another agent claims to be this host: its disk was cloned.
    Duplicate,
    /// 1 while the host refuses its document of desired state; the one before it holds.
    DocumentRefused,
    /// 1 while the console speaks a later protocol than the agent, which does nothing that it is told.
    LaterProtocol,
    /// A metric of a newer party, unknown to this reader.
    #[serde(other)]
    Other,
}

impl Metric {
    /// All metrics that are known here.
    pub const ALL: [Self; 26] = [
        Self::CpuBusy,
        Self::MemoryUsed,
        Self::DiskUsed,
        Self::InodesUsed,
        Self::DiskUnresponsive,
        Self::FilesUsed,
        Self::PidsUsed,
        Self::PortsUsed,
        Self::ConntrackUsed,
        Self::LoadPerCore,
        Self::Temperature,
        Self::UnitCpuBusy,
        Self::UnitMemory,
        Self::UnitDiskUsed,
        Self::UnitRestarts,
        Self::UnitBroken,
        Self::UnitFailed,
        Self::UnitRolledBack,
        Self::CertificateLeft,
        Self::StoreUsed,
        Self::ClockOff,
        Self::StoreLost,
        Self::StoreUnwritable,
        Self::Duplicate,
        Self::DocumentRefused,
        Self::LaterProtocol,
    ];

    /// The table of metrics of alerts.
    #[must_use]
    pub fn row(self) -> MetricRow {
        use AlertSource::{Resource, State};
        use AlertSubject::{Host, Mount, Unit};
        use Measure::{Bytes, Celsius, Flag, Number, Ratio, Seconds};
        let row = |name, subject, measure, source| MetricRow { name, subject, measure, source };
        let field = |measurement, field| AlertSource::Field(SeriesField { measurement, field });
        let per_processor = |measurement, field| AlertSource::PerProcessor(SeriesField { measurement, field });
        let share = |measurement, field, whole| AlertSource::Share(SeriesField { measurement, field }, whole);
        match self {
            Self::CpuBusy => row("cpu_busy", Host, Ratio, field("muster_host_cpu", "busy_ratio")),
            Self::MemoryUsed => {
                row("memory_used", Host, Ratio, share("muster_host_memory", "used_bytes", "total_bytes"))
            }
            Self::DiskUsed => row("disk_used", Mount, Ratio, share("muster_host_disk", "used_bytes", "total_bytes")),
            Self::InodesUsed => row("inodes_used", Mount, Ratio, share("muster_host_disk", "used_inodes", "inodes")),
            Self::DiskUnresponsive => row("disk_unresponsive", Mount, Flag, field("muster_host_disk", "unresponsive")),
            Self::FilesUsed => row("files_used", Host, Ratio, Resource("files")),
            Self::PidsUsed => row("pids_used", Host, Ratio, Resource("pids")),
            Self::PortsUsed => row("ports_used", Host, Ratio, Resource("ports")),
            Self::ConntrackUsed => row("conntrack_used", Host, Ratio, Resource("conntrack")),
            Self::LoadPerCore => row("load_per_core", Host, Number, per_processor("muster_host_load", "5m")),
            Self::Temperature => row("temperature", Host, Celsius, field("muster_host_temperature", "celsius")),
            Self::UnitCpuBusy => row("unit_cpu_busy", Unit, Ratio, field("muster_unit_cpu", "busy_ratio")),
            Self::UnitMemory => row("unit_memory", Unit, Bytes, field("muster_unit_memory", "resident_bytes")),
            Self::UnitDiskUsed => {
                row("unit_disk_used", Unit, Ratio, share("muster_unit_disk", "used_bytes", "total_bytes"))
            }
            Self::UnitRestarts => row("unit_restarts", Unit, Number, State),
            Self::UnitBroken => row("unit_broken", Unit, Flag, State),
            Self::UnitFailed => row("unit_failed", Unit, Flag, State),
            Self::UnitRolledBack => row("unit_rolled_back", Unit, Flag, State),
            Self::CertificateLeft => row("certificate_left", Host, Ratio, State),
            Self::StoreUsed => row("store_used", Host, Ratio, State),
            Self::ClockOff => row("clock_off", Host, Seconds, State),
            Self::StoreLost => row("store_lost", Host, Flag, State),
            Self::StoreUnwritable => row("store_unwritable", Host, Flag, State),
            Self::Duplicate => row("duplicate", Host, Flag, State),
            Self::DocumentRefused => row("document_refused", Host, Flag, State),
            Self::LaterProtocol => row("later_protocol", Host, Flag, State),
            Self::Other => row("other", Host, Number, State),
        }
    }

    /// Returns the metric as in the JSON form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.row().name
    }

    /// Returns the unit of its values.
    #[must_use]
    pub fn measure(self) -> Measure {
        self.row().measure
    }

    /// Whether low values are bad. For all others, high values are.
    #[must_use]
    pub fn is_bad_if_low(self) -> bool {
        self == Self::CertificateLeft
    }

    /// Whether it is about units.
    #[must_use]
    pub fn is_of_units(self) -> bool {
        self.row().subject == AlertSubject::Unit
    }
}

/// A row of the table of metrics of alerts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricRow {
    /// The name, as in the JSON form.
    pub name: &'static str,
    /// What each value is about.
    pub subject: AlertSubject,
    /// The unit of its values.
    pub measure: Measure,
    /// What values are made from.
    pub source: AlertSource,
}

/// What an alert is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlertSubject {
    /// The host.
    Host,
    /// A file system, by the label `mount`.
    Mount,
    /// A unit, by the labels `realm` and `unit`.
    Unit,
}

/// A field of a measurement of [the catalogue](crate::catalogue).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesField {
    /// The measurement.
    pub measurement: &'static str,
    /// The field.
    pub field: &'static str,
}

/// What the values of an alert's metric are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlertSource {
    /// The field's value.
    Field(SeriesField),
    /// The field's value for each logical processor.
    PerProcessor(SeriesField),
    /// The field's ratio to this other field of the measurement.
    Share(SeriesField, &'static str),
    /// The used share of the `muster_host_resource` of this name.
    Resource(&'static str),
    /// What the agent knows of itself and of its units.
    State,
}

impl AlertSource {
    /// Returns the field that is measured, and the one that it is a share of.
    #[must_use]
    pub fn fields(self) -> Option<(SeriesField, Option<&'static str>)> {
        const RESOURCE: SeriesField = SeriesField { measurement: "muster_host_resource", field: "used" };
        match self {
            Self::Field(field) | Self::PerProcessor(field) => Some((field, None)),
            Self::Share(field, whole) => Some((field, Some(whole))),
            Self::Resource(_) => Some((RESOURCE, Some("limit"))),
            Self::State => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_parses_and_unknown_one_is_kept() {
        for metric in Metric::ALL {
            let json = serde_json::to_value(metric).unwrap();
            assert_eq!(json, metric.as_str());
            assert_eq!(serde_json::from_value::<Metric>(json).unwrap(), metric);
        }
        assert_eq!(serde_json::from_str::<Metric>("\"pressure\"").unwrap(), Metric::Other);
    }

    #[test]
    fn sources_are_in_the_catalogue() {
        for metric in Metric::ALL {
            let row = metric.row();
            let Some((measured, whole)) = row.source.fields() else { continue };
            let found = crate::catalogue::measurement(measured.measurement).unwrap();
            let unit = found.field(measured.field).unwrap().unit;
            match whole {
                Some(whole) => assert_eq!((found.field(whole).unwrap().unit, row.measure), (unit, Measure::Ratio)),
                None => assert_eq!(unit, row.measure, "{metric:?}"),
            }
            let labels: &[&str] = match row.subject {
                AlertSubject::Host => &[],
                AlertSubject::Mount => &["mount"],
                AlertSubject::Unit => &["realm", "unit"],
            };
            assert!(labels.iter().all(|label| found.labels.contains(label)), "{metric:?}");
        }
    }
}
