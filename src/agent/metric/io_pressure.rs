//! Disk activity and waiting times: `/proc/diskstats` and `/proc/pressure`. Pure.

/// The activity of one disk since boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DiskIo {
    pub(super) device: String,
    pub(super) reads: u64,
    pub(super) read_bytes: u64,
    pub(super) writes: u64,
    pub(super) written_bytes: u64,
    /// How long it was busy.
    pub(super) busy_ms: u64,
}

/// The kernel's unit of counting, whatever the disk's own sectors are.
const SECTOR_BYTES: u64 = 512;
/// Devices that are made of files, memory or other devices, whose activity is counted there or not at all, and those
/// whose activity does not matter.
const UNREAL: [&str; 7] = ["loop", "ram", "zram", "dm-", "md", "sr", "fd"];

impl DiskIo {
    /// Parses `/proc/diskstats`, without partitions of listed disks and devices without activity.
    pub(super) fn parse(stats: &str) -> Vec<Self> {
        let mut disks: Vec<_> = stats.lines().filter_map(Self::parse_line).collect();
        let names: Vec<String> = disks.iter().map(|disk| disk.device.clone()).collect();
        disks.retain(|disk| !names.iter().any(|whole| is_part(&disk.device, whole)));
        disks.sort_by(|a, b| a.device.cmp(&b.device));
        disks
    }

    fn parse_line(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace().skip(2);
        let device = words.next()?;
        if UNREAL.iter().any(|unreal| device.starts_with(unreal)) {
            return None;
        }
        let mut number = |skip: usize| words.nth(skip)?.parse::<u64>().ok();
        // Fields 4, 6, 8, 10 and 13 of the kernel's documentation (iostats), whose first is the major number.
        let (reads, read, writes, written, busy_ms) = (number(0)?, number(1)?, number(1)?, number(1)?, number(2)?);
        let bytes = |sectors: u64| sectors.saturating_mul(SECTOR_BYTES);
        let (read_bytes, written_bytes) = (bytes(read), bytes(written));
        let disk = Self { device: device.to_owned(), reads, read_bytes, writes, written_bytes, busy_ms };
        (reads > 0 || writes > 0).then_some(disk)
    }
}

/// Whether a device is a partition of another: `sda1` of `sda`, `nvme0n1p2` of `nvme0n1`.
fn is_part(part: &str, whole: &str) -> bool {
    let Some(rest) = part.strip_prefix(whole) else { return false };
    let number = match whole.ends_with(|c: char| c.is_ascii_digit()) {
        true => rest.strip_prefix('p'),
        false => Some(rest),
    };
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// How long tasks waited for a resource since boot, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PressureStall {
    /// While some task waited.
    pub(super) some_us: u64,
    /// While all non-idle tasks waited; older kernels do not report it for processors.
    pub(super) full_us: Option<u64>,
}

impl PressureStall {
    /// Parses a file of `/proc/pressure`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let total = |word: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '))?;
            line.split_ascii_whitespace().find_map(|word| word.strip_prefix("total=")?.parse().ok())
        };
        Some(Self { some_us: total("some")?, full_us: total("full") })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn disks_are_parsed_without_partitions() {
        let text = "   7       0 loop0 5 0 8 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n \
            254       0 vda 498856 40295 87522714 1785454 7475725 1490788 853331368 8846657 0 1498328 11437203 3711121 14225 751437992 543467 1277097 261624\n \
            254       1 vda1 498000 40295 87522714 1785454 7475725 1490788 853331368 8846657 0 1498328 11437203\n \
            259       0 nvme0n1 10 0 16 1 20 0 32 2 0 3 3\n \
            259       1 nvme0n1p1 10 0 16 1 20 0 32 2 0 3 3\n \
            259       2 nvme0n12 1 0 2 1 0 0 0 0 0 1 1\n \
            202       1 xvda1 7 0 8 1 0 0 0 0 0 5 5\n \
            253       0 dm-0 10 0 16 1 20 0 32 2 0 3 3\n \
              8      16 sdb 0 0 0 0 0 0 0 0 0 0 0\n \
              8      32 sdc 1 2 3\nnonsense\n";
        let found = DiskIo::parse(text);
        let names: Vec<_> = found.iter().map(|disk| disk.device.as_str()).collect();
        assert_eq!(names, ["nvme0n1", "nvme0n12", "vda", "xvda1"]);
        let vda = DiskIo {
            device: "vda".into(),
            reads: 498_856,
            read_bytes: 87_522_714 * 512,
            writes: 7_475_725,
            written_bytes: 853_331_368 * 512,
            busy_ms: 1_498_328,
        };
        assert_eq!(found[2], vda);
    }

    #[test]
    fn pressure_is_parsed() {
        let text = "some avg10=9.35 avg60=8.31 avg300=4.08 total=31322896756\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=17\n";
        assert_eq!(PressureStall::parse(text), Some(PressureStall { some_us: 31_322_896_756, full_us: Some(17) }));
        let old = text.lines().next().unwrap();
        assert_eq!(PressureStall::parse(old), Some(PressureStall { some_us: 31_322_896_756, full_us: None }));
        for wrong in ["", "some", "some total=x", "full total=1", "something total=1"] {
            assert_eq!(PressureStall::parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_the_parsers(text in "([ a-z0-9=.]{0,12} {0,2}){0,30}\n?", any in any::<String>()) {
            for text in [&text, &any] {
                let _ = (DiskIo::parse(text), PressureStall::parse(text), is_part(text, "a1"), is_part("a1", text));
            }
        }
    }
}
