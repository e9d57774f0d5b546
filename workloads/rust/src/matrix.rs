//! Matrices: a product by blocks and a solver, plain loops that the compiler turns into vectors.

/// Rows of one square matrix after the other.
pub(crate) struct Square {
    pub(crate) n: usize,
    pub(crate) cells: Vec<f64>,
}

/// Columns of a block: three blocks stay in the caches of a small core.
const BLOCK: usize = 64;

impl Square {
    pub(crate) fn from_fn(n: usize, mut cell: impl FnMut() -> f64) -> Self {
        Self { n, cells: (0..n * n).map(|_| cell()).collect() }
    }

    fn row(&self, at: usize) -> &[f64] {
        &self.cells[at * self.n..(at + 1) * self.n]
    }

    /// This times a vector.
    pub(crate) fn times(&self, vector: &[f64]) -> Vec<f64> {
        (0..self.n).map(|at| dot(self.row(at), vector)).collect()
    }

    /// This times another.
    pub(crate) fn product(&self, other: &Self) -> Self {
        let n = self.n;
        let mut cells = vec![0.0; n * n];
        for first in (0..n).step_by(BLOCK) {
            let last = (first + BLOCK).min(n);
            for (at, out) in cells.chunks_exact_mut(n).enumerate() {
                for k in first..last {
                    let factor = self.cells[at * n + k];
                    for (sum, value) in out.iter_mut().zip(other.row(k)) {
                        *sum += factor * value;
                    }
                }
            }
        }
        Self { n, cells }
    }

    /// The solution for a right side, by elimination with row pivots; destroys the matrix.
    pub(crate) fn solve(mut self, mut right: Vec<f64>) -> Vec<f64> {
        let n = self.n;
        for k in 0..n {
            let size = |row: &usize| self.cells[row * n + k].abs();
            let pivot = (k..n).max_by(|a, b| size(a).total_cmp(&size(b))).unwrap_or(k);
            if pivot != k {
                let (above, below) = self.cells.split_at_mut(pivot * n);
                above[k * n..(k + 1) * n].swap_with_slice(&mut below[..n]);
                right.swap(k, pivot);
            }
            let (done, rest) = self.cells.split_at_mut((k + 1) * n);
            let head = &done[k * n..];
            for (at, row) in rest.chunks_exact_mut(n).enumerate() {
                let factor = row[k] / head[k];
                for (cell, above) in row[k + 1..].iter_mut().zip(&head[k + 1..]) {
                    *cell -= factor * above;
                }
                right[k + 1 + at] -= factor * right[k];
            }
        }
        for k in (0..n).rev() {
            let known = dot(&self.row(k)[k + 1..], &right[k + 1..]);
            right[k] = (right[k] - known) / self.cells[k * n + k];
        }
        right
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

#[cfg(test)]
mod tests {
    use super::Square;

    #[test]
    fn small_systems_and_products() {
        let a = || Square { n: 2, cells: vec![0.0, 2.0, 1.0, 3.0] };
        assert_eq!(a().solve(vec![4.0, 5.0]), [-1.0, 2.0], "the first row needs a pivot");
        assert_eq!(a().product(&a()).cells, [2.0, 6.0, 3.0, 11.0]);
    }
}
