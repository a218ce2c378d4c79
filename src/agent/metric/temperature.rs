//! Temperature of the machine: that of its warmest sensor.
//!
//! Reading a sensor may take milliseconds, and a broken one may hang, so a [`super::blocking_timeout`] reads it.

use std::{fs, path::Path};

/// The most sensor files that are read; a machine with more has many alike.
const SENSORS_MAX: usize = 64;
/// The plausible range of a running machine's sensors, in thousandths of a degree.
const PLAUSIBLE: std::ops::RangeInclusive<i64> = -40_000..=150_000;

/// Returns the warmest sensor in degrees Celsius; `None` without sensors, as on most virtual machines.
pub(super) fn warmest() -> Option<f64> {
    warmest_below(Path::new("/sys/class"))
}

fn warmest_below(class: &Path) -> Option<f64> {
    let chips = entries(&class.join("hwmon"), |_| true);
    let inputs =
        chips.iter().flat_map(|chip| entries(chip, |name| name.starts_with("temp") && name.ends_with("_input")));
    let zones = entries(&class.join("thermal"), |name| name.starts_with("thermal_zone"));
    let files = inputs.chain(zones.iter().map(|zone| zone.join("temp"))).take(SENSORS_MAX);
    let values = files.filter_map(|path| fs::read_to_string(path).ok()?.trim().parse::<i64>().ok());
    // Thousandths of degrees are far below the limit of a float's exact integers.
    values.filter(|value| PLAUSIBLE.contains(value)).max().map(|value| value as f64 / 1000.0)
}

fn entries(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_str().is_some_and(&wanted)).map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warmest_plausible_sensor_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(warmest_below(folder.path()), None);
        write("hwmon/hwmon0/temp1_input", "45000\n");
        write("hwmon/hwmon0/temp1_max", "90000\n");
        write("hwmon/hwmon1/temp2_input", "61500\n");
        write("hwmon/hwmon1/temp3_input", "-274000\n");
        write("hwmon/hwmon1/temp4_input", "much\n");
        write("thermal/thermal_zone0/temp", "58000\n");
        write("thermal/cooling_device0/temp", "99000\n");
        assert_eq!(warmest_below(folder.path()), Some(61.5));
        write("thermal/thermal_zone1/temp", "72000");
        assert_eq!(warmest_below(folder.path()), Some(72.0));
    }
}
