"""The masks of one of transformers' models, as another part of it has them."""


def as_it_generates(model):
    """A Gemma 4 12B whose forward sees what its class's generation does.

    In transformers 5.23 the forward of `gemma4_unified` has images see themselves whole in global
    layers too, as Gemma 3's; `create_masks_for_generate` of the same class has them do so in local
    ones alone, within the window, as `gemma4` does and Google's own code.
    """
    import torch

    forward = model.model.forward

    def masked(input_ids=None, attention_mask=None, mm_token_type_ids=None, **rest):
        if torch.is_tensor(attention_mask) and mm_token_type_ids is not None:
            embedded = model.get_input_embeddings()(input_ids)
            cache, places = rest.get("past_key_values"), rest.get("position_ids")
            attention_mask = model.create_masks_for_generate(
                model.config, embedded, attention_mask, cache, places, mm_token_type_ids
            )
        given = {"attention_mask": attention_mask, "mm_token_type_ids": mm_token_type_ids}
        return forward(input_ids=input_ids, **given, **rest)

    model.model.forward = masked
    return model
