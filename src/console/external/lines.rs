//! Formats points as lines for external stores, in pieces of at most one request. Pure.
//!
//! Points that the embedded store would reject are left out here too, because some servers refuse a whole request for one such line, and
//! others keep a point of the year 2100 forever.

use muster_topics::{
    Millis,
    metric::{self, Point},
};

/// The most lines of one request: InfluxData's recommendation.
pub(super) const LINES_MAX: u64 = 5_000;
/// The most bytes of one request, unless a single line has more: a little less than nginx's default limit (1 MiB).
pub(super) const BYTES_MAX: u64 = 1_000_000;

/// The most labels of a point: as in the embedded store.
const LABELS_MAX: usize = 32;
/// The longest name or label, in bytes: as in the embedded store.
const TEXT_MAX_BYTES: usize = 1_024;
/// The longest line, in bytes: a quarter of VictoriaMetrics's default limit, and a hundred times what agents write.
const LINE_MAX_BYTES: usize = 64 * 1024;
/// Earlier times (before 2020) are of clocks that were never set.
const EARLIEST_MS: Millis = 1_577_836_800_000;
/// How far ahead a clock may be: as in the embedded store.
const AHEAD_MAX_MS: Millis = 24 * 3_600 * 1_000;

/// Lines of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LinePiece {
    /// Line protocol, with times in milliseconds.
    pub(super) text: String,
    /// The number of lines.
    pub(super) lines: u64,
}

impl LinePiece {
    /// Whether this much more would exceed one request.
    pub(super) fn is_full_with(&self, lines: u64, bytes: u64) -> bool {
        self.lines > 0 && (self.lines + lines > LINES_MAX || self.text.len() as u64 + bytes > BYTES_MAX)
    }
}

/// Encodes points as lines; returns also how many were skipped.
pub(super) fn encode(points: &[Point], now: Millis) -> (Vec<LinePiece>, u64) {
    let (mut pieces, mut piece, mut left_out) = (Vec::new(), LinePiece::default(), 0);
    let mut line = String::new();
    for point in points {
        line.clear();
        if is_fit(point, now) {
            metric::write_line(&mut line, point);
        }
        // A line that begins with `#` would be a comment.
        if line.is_empty() || line.len() > LINE_MAX_BYTES || line.starts_with('#') {
            left_out += 1;
            continue;
        }
        if piece.is_full_with(1, line.len() as u64) {
            pieces.push(std::mem::take(&mut piece));
        }
        piece.text.push_str(&line);
        piece.lines += 1;
    }
    if piece.lines > 0 {
        pieces.push(piece);
    }
    (pieces, left_out)
}

fn is_fit(point: &Point, now: Millis) -> bool {
    let named = |text: &str| !text.is_empty() && text.len() <= TEXT_MAX_BYTES;
    (EARLIEST_MS..=now.saturating_add(AHEAD_MAX_MS)).contains(&point.at_ms)
        && named(&point.measurement)
        && point.tags.len() <= LABELS_MAX
        && point.tags.iter().all(|(name, value)| named(name) && named(value))
        && point.fields.iter().all(|(name, value)| named(name) && value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = 1_800_000_000_000;

    fn point(value: f64) -> Point {
        Point::new("muster_host_cpu", &[("host", "a b"), ("mount", "/x,y=z")], NOW).field("busy_ratio", value)
    }

    #[test]
    fn labels_are_tags_and_times_are_milliseconds() {
        let two = point(0.5).field("user_ratio", 1e9);
        let (pieces, left_out) = encode(&[two], NOW);
        assert_eq!(left_out, 0);
        let text = "muster_host_cpu,host=a\\ b,mount=/x\\,y\\=z busy_ratio=0.5,user_ratio=1000000000 1800000000000\n";
        assert_eq!(pieces, [LinePiece { text: text.to_owned(), lines: 1 }]);
    }

    #[test]
    fn invalid_points_are_left_out() {
        let good = point(1.0);
        let long = "x".repeat(1_025);
        let with = |name: &str, value: &str| {
            let mut point = good.clone();
            point.tags.push((name.to_owned(), value.to_owned()));
            point
        };
        let mut nan = good.clone();
        nan.fields = vec![("f".to_owned(), f64::NAN)];
        let many = (0..33).map(|n| (format!("t{n}"), "1".to_owned())).collect();
        let wide = (0..2_000).map(|n| (format!("{n:0>40}"), 1.0)).collect();
        let unfit = [
            Point { at_ms: 0, ..good.clone() },
            Point { at_ms: NOW + 25 * 3_600_000, ..good.clone() },
            Point { measurement: String::new(), ..good.clone() },
            Point { measurement: "#comment".to_owned(), ..good.clone() },
            Point { measurement: long.clone(), ..good.clone() },
            Point { fields: Vec::new(), ..good.clone() },
            Point { tags: many, ..good.clone() },
            Point { fields: wide, ..good.clone() },
            with("", "x"),
            with("x", ""),
            with("x", &long),
            nan,
        ];
        for point in &unfit {
            assert_eq!(encode(std::slice::from_ref(point), NOW), (Vec::new(), 1), "{point:?}");
        }
        let (pieces, left_out) = encode(&[&unfit[..], &[good]].concat(), NOW);
        assert_eq!((pieces[0].lines, left_out), (1, unfit.len() as u64));
    }

    #[test]
    fn special_characters_are_escaped() {
        let hostile = Point::new("m\n#", &[("a\r", "b\\"), ("c", "\n\n")], NOW).field("f\n", 1.0);
        let (pieces, _) = encode(&[hostile], NOW);
        assert_eq!(pieces[0].text.lines().count(), 1, "{:?}", pieces[0].text);
        let read = metric::decode(format!("# v=1 epoch=1 seq=1\n{}", pieces[0].text).as_bytes()).unwrap().1;
        assert_eq!((read.len(), read[0].tags.len()), (1, 2));
    }

    #[test]
    fn pieces_are_bounded_in_lines_and_bytes() {
        let (pieces, _) = encode(&vec![point(0.5); 12_345], NOW);
        assert_eq!(pieces.iter().map(|piece| piece.lines).collect::<Vec<_>>(), [5_000, 5_000, 2_345]);
        let long = Point::new("m", &[("tag", &"x".repeat(1_000))], NOW).field("f", 1.0);
        let (pieces, _) = encode(&vec![long; 2_500], NOW);
        assert_eq!(pieces.iter().map(|piece| piece.lines).sum::<u64>(), 2_500);
        assert!(pieces.len() == 3 && pieces.iter().all(|piece| piece.text.len() as u64 <= BYTES_MAX));
    }
}
