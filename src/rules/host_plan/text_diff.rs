//! The unified difference of two texts.

/// Lines that are shown around a change.
const CONTEXT: usize = 3;

/// Up to how many pairs of lines the longest common part is looked for; beyond that, what lies between the common beginning
/// and end is replaced as a whole.
const PAIRS_MAX: usize = 4_000_000;

/// A line of both texts, or of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line<'a> {
    Both(&'a str),
    Old(&'a str),
    New(&'a str),
}

/// Returns how `new` differs from `old`, in at most `max_bytes`; the last line says if more was left out.
#[must_use]
pub fn unified(old: &str, new: &str, max_bytes: usize) -> String {
    let lines = lines(old, new);
    let mut text = String::new();
    for (from, to) in hunks(&lines) {
        let before = &lines[..from];
        let (old_from, new_from) = (count(before, is_old) + 1, count(before, is_new) + 1);
        let hunk = &lines[from..to];
        let mut part = format!("@@ -{old_from},{} +{new_from},{} @@\n", count(hunk, is_old), count(hunk, is_new));
        for line in hunk {
            let (mark, line) = match line {
                Line::Both(line) => (' ', line),
                Line::Old(line) => ('-', line),
                Line::New(line) => ('+', line),
            };
            part.push(mark);
            part.push_str(line.strip_suffix('\n').unwrap_or(line));
            part.push('\n');
            if !line.ends_with('\n') {
                part.push_str("\\ No newline at end of file\n");
            }
        }
        text.push_str(&part);
        if text.len() > max_bytes {
            return cut(&text, max_bytes);
        }
    }
    text
}

fn cut(text: &str, max_bytes: usize) -> String {
    let mut kept = String::new();
    let mut lines = text.split_inclusive('\n');
    for line in lines.by_ref() {
        if kept.len() + line.len() > max_bytes {
            break;
        }
        kept.push_str(line);
    }
    kept.push_str("… the rest is left out\n");
    kept
}

fn is_old(line: &Line<'_>) -> bool {
    !matches!(line, Line::New(_))
}

fn is_new(line: &Line<'_>) -> bool {
    !matches!(line, Line::Old(_))
}

fn count(lines: &[Line<'_>], which: impl Fn(&Line<'_>) -> bool) -> usize {
    lines.iter().filter(|line| which(line)).count()
}

/// Returns the parts with changes, with some lines around each.
fn hunks(lines: &[Line<'_>]) -> Vec<(usize, usize)> {
    let mut hunks: Vec<(usize, usize)> = Vec::new();
    for (at, _) in lines.iter().enumerate().filter(|(_, line)| !matches!(line, Line::Both(_))) {
        let (from, to) = (at.saturating_sub(CONTEXT), (at + 1 + CONTEXT).min(lines.len()));
        match hunks.last_mut() {
            Some(last) if from <= last.1 => last.1 = to,
            _ => hunks.push((from, to)),
        }
    }
    hunks
}

fn lines<'a>(old: &'a str, new: &'a str) -> Vec<Line<'a>> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.split_inclusive('\n').collect(), new.split_inclusive('\n').collect());
    let first = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let (old_rest, new_rest) = (&old[first..], &new[first..]);
    let last = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(old, new)| old == new).count();
    let (old_middle, new_middle) = (&old_rest[..old_rest.len() - last], &new_rest[..new_rest.len() - last]);
    let mut all: Vec<Line<'a>> = old[..first].iter().copied().map(Line::Both).collect();
    if old_middle.len().saturating_mul(new_middle.len()) > PAIRS_MAX {
        all.extend(old_middle.iter().copied().map(Line::Old));
        all.extend(new_middle.iter().copied().map(Line::New));
    } else {
        all.extend(middle(old_middle, new_middle));
    }
    all.extend(old_rest[old_middle.len()..].iter().copied().map(Line::Both));
    all
}

/// Aligns by the longest common subsequence.
fn middle<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<Line<'a>> {
    let width = new.len() + 1;
    // How long the longest common part of the rests is, from each place of both on.
    let mut longest = vec![0u32; (old.len() + 1) * width];
    for (i, one) in old.iter().enumerate().rev() {
        for (j, other) in new.iter().enumerate().rev() {
            longest[i * width + j] = if one == other {
                longest[(i + 1) * width + j + 1] + 1
            } else {
                longest[(i + 1) * width + j].max(longest[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j, mut all) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            all.push(Line::Both(old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || i < old.len() && longest[(i + 1) * width + j] >= longest[i * width + j + 1] {
            all.push(Line::Old(old[i]));
            i += 1;
        } else {
            all.push(Line::New(new[j]));
            j += 1;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn changed_line_has_lines_around_it() {
        let old: String = (1..=9).map(|n| format!("{n}\n")).collect();
        let new = old.replace("5\n", "five\n");
        assert_eq!(unified(&old, &new, 1_000), "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n");
        assert_eq!(unified(&old, &old, 1_000), "");
        assert_eq!(unified("", "a\nb", 1_000), "@@ -1,0 +1,2 @@\n+a\n+b\n\\ No newline at end of file\n");
        let far = format!("{}x\n", old.replace("1\n", "one\n"));
        assert_eq!(unified(&old, &far, 1_000).matches("@@ -").count(), 2);
    }

    #[test]
    fn long_difference_is_cut_and_says_so() {
        let new: String = (0..10_000).map(|n| format!("{n}\n")).collect();
        let cut = unified("", &new, 1_000);
        assert!(cut.len() < 1_050 && cut.ends_with("… the rest is left out\n"), "{cut}");
        // What is too long to be aligned is replaced.
        let old: String = (0..10_000).map(|n| format!("old {n}\n")).collect();
        assert!(unified(&old, &new, 1_000).contains("-old 0\n-old 1\n"));
    }

    proptest! {
        #[test]
        fn lines_make_both_texts(old in "[ab\n]{0,40}", new in "[ab\n]{0,40}") {
            let all = lines(&old, &new);
            let of = |which: fn(&Line<'_>) -> bool| all.iter().filter(|line| which(line)).map(|line| match line {
                Line::Both(text) | Line::Old(text) | Line::New(text) => *text,
            }).collect::<String>();
            prop_assert_eq!(of(is_old), old.clone());
            prop_assert_eq!(of(is_new), new.clone());
        }
    }
}
