//! Many rows in one statement. A statement costs some 20 µs on its way to the database and back, a row in a larger one
//! two or three.
//!
//! Statements are made for few numbers of rows, so that each is prepared once: a database keeps the plans of a hundred.

/// The numbers of rows that statements are made for, an eighth of the one before each. Larger ones cost more: SQLite goes through the
/// names of all parameters to find that of one.
const SIZES: [usize; 3] = [64, 8, 1];

/// Cuts items into pieces, each of one of few sizes.
pub fn pieces<T>(items: &[T]) -> impl Iterator<Item = &[T]> {
    let mut rest = items;
    std::iter::from_fn(move || {
        let size = SIZES.into_iter().find(|size| *size <= rest.len())?;
        let (piece, left) = rest.split_at(size);
        rest = left;
        Some(piece)
    })
}

/// Parameters for so many rows: `($1, $2), ($3, $4)`.
#[must_use]
pub fn parameters(rows: usize, columns: usize) -> String {
    let mut text = String::with_capacity(rows * (columns * 6 + 4));
    for row in 0..rows {
        text.push_str(if row == 0 { "(" } else { ", (" });
        for column in 1..=columns {
            let comma = if column == 1 { "$" } else { ", $" };
            text.push_str(comma);
            text.push_str(&(row * columns + column).to_string());
        }
        text.push(')');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_of_few_sizes_and_leave_nothing_out() {
        for count in [0, 1, 7, 8, 9, 63, 64, 577, 1_500] {
            let items: Vec<usize> = (0..count).collect();
            assert!(pieces(&items).all(|piece| SIZES.contains(&piece.len())), "{count}");
            assert_eq!(pieces(&items).flatten().copied().collect::<Vec<_>>(), items);
        }
    }

    #[test]
    fn parameters_count_on() {
        assert_eq!(parameters(1, 1), "($1)");
        assert_eq!(parameters(2, 2), "($1, $2), ($3, $4)");
        assert_eq!(parameters(0, 3), "");
    }
}
