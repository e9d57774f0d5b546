/** The last `size` values. */
export class Ring<T> {
  private readonly values: T[] = [];
  constructor(private readonly size: number) {}

  push(value: T): void {
    this.values.push(value);
    // Cutting a quarter at a time keeps the cost of a push constant on average.
    if (this.values.length > this.size * 1.25) this.values.splice(0, this.values.length - this.size);
  }

  /** The oldest first. */
  all(): T[] {
    return this.values.slice(-this.size);
  }

  last(): T | undefined {
    return this.values[this.values.length - 1];
  }

  get length(): number {
    return Math.min(this.values.length, this.size);
  }
}
