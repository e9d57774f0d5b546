import { span } from "../lib/format";
import type { DeployStep } from "../lib/types";
import { Icon } from "./base";

/** The finished steps of a change, as the command line prints them. */
export function Steps({ steps }: { steps: DeployStep[] }) {
  return (
    <ol class="steps">
      {steps.map((one, at) => (
        <li key={at}>
          <Icon name="ok" />
          <span class="step-name">{one.name}</span>
          <span class="step-detail">{one.detail}</span>
          <span class="num quiet">{one.ms > 0 ? span(one.ms) : ""}</span>
        </li>
      ))}
    </ol>
  );
}
