//! Builds messages from samples. Pure.

use muster_topics::{
    PAYLOAD_MAX_BYTES,
    ack::Numbered,
    metric::{PointLine, Shared, UNPACKED_MAX_BYTES, encode_lines, pack},
};

/// A message, with the number by which the console acknowledges it.
pub type BatchMessage = (Numbered, Vec<u8>);

/// Puts points into as many messages as needed, numbered from `first`. Points of one series are adjacent, because
/// similar neighbours compress best. Compressed messages have the `shared` tags once; lines were written without them.
pub fn messages(first: Numbered, lines: &mut [PointLine], shared: Option<Shared<'_>>) -> Vec<BatchMessage> {
    lines.sort_by(|a, b| (a.series(), a.at_ms()).cmp(&(b.series(), b.at_ms())));
    let mut messages = Vec::new();
    let mut pieces = vec![&*lines];
    while let Some(piece) = pieces.pop() {
        let id = Numbered { epoch: first.epoch, seq: first.seq + messages.len() as u64 };
        let text = encode_lines(id, shared, piece);
        let fits = text.len() <= UNPACKED_MAX_BYTES;
        let payload = if shared.is_some() && fits { pack(&text) } else { text.into_bytes() };
        if fits && payload.len() <= PAYLOAD_MAX_BYTES {
            if !piece.is_empty() {
                messages.push((id, payload));
            }
        } else if piece.len() > 1 {
            let (left, right) = piece.split_at(piece.len() / 2);
            pieces.extend([right, left]);
        } else {
            let measurement = piece.first().and_then(|line| line.series().split(',').next());
            tracing::warn!(measurement, "a point is too large for a message");
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        Millis,
        metric::{Point, decode},
    };

    use super::{
        super::{sample::tests::labels, value_filter::ThinFilter},
        *,
    };

    const FIRST: Numbered = Numbered { epoch: 1_795_000_000, seq: 7 };

    /// The budget of a message of three samples, about 56 values: 450 bytes. It takes 323.
    const THREE_SAMPLES_MAX_BYTES: usize = 330;
    /// The average budget of a quiet host's messages, with the default settings.
    const QUIET_MAX_BYTES: usize = 310;
    /// The budget of each of those, including the one a minute with all metrics.
    const EACH_MAX_BYTES: usize = 450;

    fn shared() -> (String, String) {
        (labels().host.to_string(), labels().hostname)
    }

    /// A pseudo-random number from 0 to 1 for each `n`.
    fn noise(n: u64) -> f64 {
        (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / f64::from(1 << 24)
    }

    /// The `i`th sample of a small host at ordinary work, in which every digit differs that would. With `everything`,
    /// all metrics, otherwise those that agents measured from the start.
    fn quiet_host(i: u64, everything: bool) -> Vec<Point> {
        let (host, hostname) = shared();
        let at_ms = 1_795_228_867_600 + 10_000 * i as Millis;
        let steps = i as f64;
        let random = |n: u64| noise(100 * i + n);
        let point = |name: &str, tags: &[(&str, &str)]| {
            let common = [("host", host.as_str()), ("hostname", hostname.as_str())];
            Point::new(name, &[&common, tags].concat(), at_ms)
        };
        let counter = |per_sample: f64, n| (per_sample * (1_000.0 + steps + random(n))).round();
        let pages = |base: f64, of: f64, n| ((base + of * random(n)) / 4096.0).round() * 4096.0;
        let ratio = |base: f64, n| ((base + random(n) / 50.0) * 1e4).round() / 1e4;
        let used = pages(1.2e9, 3e6, 1);
        let (user, system) = (ratio(0.0207, 2), ratio(0.0098, 3));
        let mut cpu = point("muster_host_cpu", &[])
            .field("busy_ratio", ((user + system) * 1e4).round() / 1e4)
            .field("user_ratio", user)
            .field("system_ratio", system)
            .field("iowait_ratio", (random(4) * 4.0).floor() / 1e4);
        let mut network = point("muster_host_network", &[("interface", "eth0")])
            .field("receive_bytes_total", counter(18_371.0, 5))
            .field("transmit_bytes_total", counter(9_733.0, 6));
        let mut points = vec![
            point("muster_host_load", &[])
                .field("1m", (8.0 + (random(7) * 5.0).round()) / 100.0)
                .field("5m", (9.0 + (steps / 3.0).floor()) / 100.0)
                .field("15m", 0.26),
            point("muster_host_memory", &[])
                .field("total_bytes", 4_124_336_128.0)
                .field("used_bytes", used)
                .field("available_bytes", 4_124_336_128.0 - used),
            point("muster_host_swap", &[]).field("total_bytes", 2_147_479_552.0).field("used_bytes", 1_835_008.0),
        ];
        let minute = i.is_multiple_of(if everything { 6 } else { 3 });
        if minute || !everything {
            points.push(point("muster_host_uptime", &[]).field("seconds", 384_174.0 + 10.0 * steps));
            points.push(point("muster_agent_memory", &[]).field("resident_bytes", pages(7.7e6, 12e3, 8)));
        }
        if minute {
            for (n, mount) in [(9, "/"), (10, "/data"), (11, "/boot")] {
                let disk = point("muster_host_disk", &[("mount", mount)]).field("total_bytes", 31_526_391_808.0);
                let disk = disk.field("used_bytes", pages(9.8e9, 4e6, n));
                let inodes = |disk: Point| disk.field("inodes", 1_966_080.0).field("used_inodes", 98_000.0 + n as f64);
                points.push(if everything { inodes(disk) } else { disk });
            }
            points.push(point("muster_agent_store", &[]).field("size_bytes", 155_648.0));
        }
        if everything {
            cpu = cpu.field("steal_ratio", 0.0);
        }
        if everything && minute {
            for (n, way) in [(12, "receive"), (13, "transmit")] {
                let field = |what: &str| format!("{way}_{what}_total");
                network = network.field(&field("packets"), counter(67.0, n));
                network = network.field(&field("errors"), 0.0).field(&field("drops"), 0.0);
            }
            for (n, core) in [(14, "0"), (15, "1")] {
                points.push(point("muster_host_cpu_core", &[("core", core)]).field("busy_ratio", ratio(0.03, n)));
            }
            for (n, resource) in [(16, "cpu"), (17, "memory"), (18, "io")] {
                let some = counter(0.9 * (19 - n) as f64, n) / 100.0;
                let pressure = point("muster_host_pressure", &[("resource", resource)]);
                points
                    .push(pressure.field("some_seconds_total", some).field("full_seconds_total", (some / 3.0).round()));
            }
            for queue in ["commands", "alerts", "outbox", "metrics"] {
                points.push(point("muster_agent_queue", &[("queue", queue)]).field("length", 0.0));
            }
            points.push(point("muster_agent_cpu", &[]).field("busy_ratio", 0.0003));
            points.push(point("muster_agent_link", &[]).field("reconnects_total", 0.0));
            points.push(
                point("muster_agent_reconcile", &[])
                    .field("age_seconds", (random(19) * 30.0).floor())
                    .field("duration_seconds", (random(20) * 3.0).floor() / 100.0),
            );
        }
        if everything && i.is_multiple_of(3) {
            points.push(
                point("muster_host_disk_io", &[("device", "vda")])
                    .field("read_bytes_total", 512.0 * counter(3.0, 21))
                    .field("written_bytes_total", 512.0 * counter(310.0, 22))
                    .field("reads_total", counter(2.0, 23))
                    .field("writes_total", counter(7.0, 24))
                    .field("busy_seconds_total", counter(11.0, 25) / 100.0),
            );
        }
        points.extend([cpu, network]);
        points
    }

    /// The lengths of text and message, and the number of values, of those that `is_sent`.
    fn lengths(points: &[Point], mut is_sent: impl FnMut(&Point, &str, f64) -> bool) -> (usize, usize, usize) {
        let (host, hostname) = shared();
        let shared = Some(Shared { host: &host, hostname: &hostname });
        let mut values = 0;
        let mut line = |point: &Point| {
            PointLine::new(point, shared, |field, value| {
                let is_sent = is_sent(point, field, value);
                values += usize::from(is_sent);
                is_sent
            })
        };
        let mut lines: Vec<_> = points.iter().filter_map(&mut line).collect();
        let messages = messages(FIRST, &mut lines, shared);
        let text = encode_lines(FIRST, shared, &lines);
        let [(_, packed)] = &messages[..] else { panic!("{} messages", messages.len()) };
        (text.len(), packed.len(), values)
    }

    #[test]
    fn batch_of_three_samples_is_small() {
        let points: Vec<_> = (0..3).flat_map(|i| quiet_host(i, false)).collect();
        let (text, packed, values) = lengths(&points, |_, _, _| true);
        println!("{values} values: {text} bytes, {packed} packed");
        assert!(values >= 55, "{values}");
        assert!(packed <= THREE_SAMPLES_MAX_BYTES, "{packed} bytes for {values} values");
    }

    #[test]
    fn batch_of_idle_host_is_small() {
        let mut thin = ThinFilter::default();
        let (mut bytes, mut count) = (0, 0);
        // Eight minutes, after the first message, which has everything.
        for message in 0..17 {
            let samples: Vec<_> = (3 * message..3 * message + 3).flat_map(|i| quiet_host(i, true)).collect();
            let (text, packed, values) = lengths(&samples, |point, field, value| thin.is_sent(point, field, value));
            println!("message {message}: {values} values: {text} bytes, {packed} packed");
            assert!(packed <= EACH_MAX_BYTES, "{packed} bytes for {values} values");
            if message > 0 {
                (bytes, count) = (bytes + packed, count + values);
            }
        }
        println!("on average {} bytes for {} values", bytes / 16, count / 16);
        assert!(count / 16 >= 40, "{count}");
        assert!(bytes / 16 <= QUIET_MAX_BYTES, "{bytes}");
    }

    #[test]
    fn large_batch_is_split() {
        let point = |i: i64| {
            let noise = i.wrapping_mul(6_364_136_223_846_793_005).unsigned_abs();
            Point::new("m", &[("t", &format!("{noise:x}"))], i).field("f", noise as f64)
        };
        for (count, packed, least) in [(0, true, 0), (1, true, 1), (1, false, 1), (3_000, false, 3), (20_000, true, 5)]
        {
            let points: Vec<_> = (0..count).map(point).collect();
            let shared = packed.then_some(Shared { host: "", hostname: "" });
            let mut lines: Vec<_> =
                points.iter().filter_map(|point| PointLine::new(point, shared, |_, _| true)).collect();
            let messages = messages(FIRST, &mut lines, shared);
            assert!(messages.len() >= least && messages.len() <= 1.max(4 * least), "{count}: {}", messages.len());
            let mut found = Vec::new();
            for (index, (id, payload)) in messages.iter().enumerate() {
                assert!(payload.len() <= PAYLOAD_MAX_BYTES);
                assert_eq!(id.seq, FIRST.seq + index as u64);
                let (decoded, points) = decode(payload).unwrap();
                assert_eq!(decoded, *id);
                found.extend(points);
            }
            found.sort_by_key(|point| point.at_ms);
            assert_eq!(found, points);
        }
        let huge = Point::new("m", &[("t", &"x".repeat(2 * UNPACKED_MAX_BYTES))], 1).field("f", 1.0);
        let shared = Some(Shared { host: "", hostname: "" });
        let points = [point(1), huge, point(2)];
        let mut lines: Vec<_> = points.iter().filter_map(|point| PointLine::new(point, shared, |_, _| true)).collect();
        let messages = messages(FIRST, &mut lines, shared);
        let kept: usize = messages.iter().map(|(_, payload)| decode(payload).unwrap().1.len()).sum();
        assert_eq!(kept, 2);
    }
}
